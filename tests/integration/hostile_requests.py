"""What hostile clients send, and what each is to be answered."""

import json
from typing import Any

from tests.integration.raw_http import completion, request
from tests.quickstart import MODEL

BODY = completion()


def chunked(content: bytes, *headers: str) -> bytes:
    head = request(b"", "connection: close", "transfer-encoding: chunked", *headers)
    return head.replace(b"content-length: 0\r\n", b"") + content


def get(target: str) -> bytes:
    return request(method="GET", target=target)


WHOLE_CHUNK = b"%x;extension=1\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
BYTE_CHUNKS = b"".join(b"1\r\n%c\r\n" % byte for byte in BODY) + b"0\r\ntrailer: x\r\n\r\n"
WEBSOCKET = (
    b"GET /v1/completions HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
    b"sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\nsec-websocket-version: 13\r\n\r\n"
)
ON_THE_WIRE: dict[str, tuple[bytes, list[int]]] = {
    "as it should be": (request(BODY), [200]),
    "two in one piece": (request(BODY, "host: x") + request(BODY), [200, 200]),
    "garbage behind a request": (request(BODY, "host: x") + b"\0\1garbage\r\n\r\n" * 10, [400]),
    "a length that is too small": (request(BODY, length=20), [400]),
    "a negative length": (request(BODY, length=-5), [400]),
    "a length beyond 64 bits": (request(BODY, length=10**30), [400]),
    "two lengths": (request(BODY, "content-length: 3"), [400]),
    "a length and chunks": (request(WHOLE_CHUNK, "transfer-encoding: chunked"), [400]),
    "an unknown transfer encoding": (request(BODY, "transfer-encoding: gzip"), [400]),
    "chunked, but not last": (chunked(WHOLE_CHUNK, "transfer-encoding: identity"), [400]),
    "a chunk with an extension": (chunked(WHOLE_CHUNK), [200]),
    "chunks of a byte and a trailer": (chunked(BYTE_CHUNKS), [200]),
    "a chunk size that is none": (chunked(b"zz\r\n{}\r\n0\r\n\r\n"), [400]),
    "a chunk size beyond 64 bits": (chunked(b"F" * 18 + b"\r\n{}\r\n0\r\n\r\n"), [400]),
    "a negative chunk size": (chunked(b"-2\r\n{}\r\n0\r\n\r\n"), [400]),
    "expects 100-continue": (
        request(BODY, "connection: close", "expect: 100-continue"),
        [100, 200],
    ),
    "expects to send too much": (
        request(b"", "connection: close", "expect: 100-continue", length=10**9),
        [413],
    ),
    "no host, and HTTP/1.0": (request(BODY, "x: y", version="HTTP/1.0"), [200]),
    "the preface of HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", [400]),
    "TLS": (bytes.fromhex("160301020001000001fc0303") + bytes(500), [400]),
    "a websocket": (WEBSOCKET, [403]),
    "an absolute target": (request(BODY, target="http://elsewhere/v1/completions"), [200]),
    "a path of 60 kB": (get("/" + "a" * 60_000), [404]),
    "a path of 1 MB": (get("/" + "a" * 1_000_000), [400]),
    "NUL in a path": (get("/health%00"), [404]),
    "line breaks in a path": (get("/v1/models/%0d%0aset-cookie:x"), [404]),
    "a path that is not UTF-8": (get("/v1/models/%ff%fe%zz"), [404]),
    "a path with raw bytes": (get("/v1/models/\xff\xfe"), [400]),
    "two slashes": (get("//health"), [404]),
    "dots": (get("/v1/../health"), [404]),
    "options of everything": (request(method="OPTIONS", target="*"), [404]),
    "a tunnel": (request(method="CONNECT", target="elsewhere:80"), [400]),
    "an unknown method": (request(method="BREW"), [400]),
    "bare line feeds": (request(BODY).replace(b"\r\n", b"\n"), [400]),
    "a folded header": (request(BODY, "x: a\r\n b"), [400]),
    "a blank before the colon": (request(BODY, "content-length : 3"), [400]),
    "NUL in a header": (request(BODY, "x: a\0b"), [400]),
    "a key that is no text": (
        request(BODY, "connection: close", "authorization: \xff ' OR 1"),
        [200],
    ),
    "5,000 headers": (
        request(BODY, "connection: close", *(f"x-{n}: {n}" for n in range(5000))),
        [431],
    ),
    "a header of 200 kB": (request(BODY, "connection: close", "x: " + "a" * 200_000), [431]),
}
"""All that is sent over one connection, and the statuses of the answers."""


MESSAGE = {"role": "user", "content": "Hi"}


def _chat(**fields: Any) -> bytes:
    body = {"model": MODEL, "messages": [MESSAGE], "max_tokens": 2}
    return json.dumps(body | fields).encode()


def _completion(**fields: Any) -> bytes:
    return json.dumps({"model": MODEL, "prompt": "Hi", "max_tokens": 2} | fields).encode()


def _nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = {"a": [value]}
    return value


def _call(arguments: object) -> dict[str, Any]:
    function = {"name": "f", "arguments": arguments}
    call = {"id": "1", "type": "function", "function": function}
    return {"role": "assistant", "content": "Hi", "tool_calls": [call]}


PART = {"type": "text", "text": "Hi"}
TEMPLATE = {"chat_template": "{{ 1 }}"}
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
REFUSED: dict[str, tuple[str, bytes, str | None]] = {
    "huge n": (CHAT, _chat(n=10**9), "n"),
    "huge n of text": (TEXT, _completion(n=10**30), "n"),
    "huge best_of": (TEXT, _completion(best_of=10**6), "best_of"),
    "1,000 stop strings": (CHAT, _chat(stop=["x" * n for n in range(1, 1001)]), "stop"),
    "a stop string of a megabyte": (CHAT, _chat(stop="x" * 10**6), "stop"),
    "100,000 stop ids": (CHAT, _chat(stop_token_ids=[1] * 100_000), "stop_token_ids"),
    "all log probabilities": (CHAT, _chat(logprobs=True, top_logprobs=49_152), "top_logprobs"),
    "all log probabilities of text": (TEXT, _completion(logprobs=49_152), "logprobs"),
    "10,000 prompts": (TEXT, _completion(prompt=["Hi"] * 10_000), "prompt"),
    "10,000 prompts of ids": (TEXT, _completion(prompt=[[1]] * 10_000), "prompt"),
    "ids of a huge model": (TEXT, _completion(prompt=[2**31 - 1]), "prompt"),
    "100,000 biases": (TEXT, _completion(logit_bias=dict.fromkeys(range(10**5), 1)), "logit_bias"),
    "10,001 messages": (CHAT, _chat(messages=[MESSAGE] * 10_001), "messages"),
    "a long prompt": (TEXT, _completion(prompt="a b " * 500_000), "prompt"),
    "a deep call": (CHAT, _chat(messages=[_call(_nested(100))]), "messages"),
    "a deep call in a text": (CHAT, _chat(messages=[_call(json.dumps(_nested(100)))]), "messages"),
    "a deep tool": (CHAT, _chat(tools=[{"type": "function", "function": _nested(100)}]), "tools"),
    "own template": (CHAT, _chat(chat_template_kwargs=TEMPLATE), "chat_template_kwargs"),
    "a name of a megabyte": (CHAT, _chat(model="x" * 10**6), None),
    "an odd name": (CHAT, _chat(model="\u202e\0\r\n👩‍👩‍👧\ufeff../../etc"), None),
    "deep JSON": (CHAT, b"[" * 100_000, None),
    "deep objects": (CHAT, b'{"a":' * 100_000, None),
    "a million values": (CHAT, _chat(x=[[]] * 10**6), None),
    "no JSON": (CHAT, b"\xff\xfe\0\0", None),
    "UTF-16": (CHAT, _chat().decode().encode("utf-16"), None),
    "nothing": (CHAT, b"", None),
}  # fmt: skip
"""Path, body, and the field that is named."""

COSTLY: dict[str, tuple[str, bytes]] = {
    "10,000 messages": ("/tokenize", _chat(messages=[MESSAGE] * 10_000)),
    "10,000 parts": (CHAT, _chat(messages=[MESSAGE | {"content": [PART] * 10_000}])),
    "two megabytes of text": ("/tokenize", _completion(prompt="Some words of no use. " * 100_000)),
    "a word of a megabyte": ("/tokenize", _completion(prompt="x" * 1_000_000)),
    "names of 300,000 tokens": (
        "/tokenize",
        _completion(prompt="漢字" * 100_000, return_token_strs=True),
    ),
    "200,000 tokens": ("/detokenize", _completion(tokens=[1000] * 200_000)),
    "a million numbers": (CHAT, _chat(x=[0] * 999_000)),
    "as many answers as allowed": (
        TEXT,
        _completion(n=16, max_tokens=200, logprobs=20, echo=True, ignore_eos=True),
    ),
    "stop strings that nearly match": (
        TEXT,
        _completion(stop=["a" * 999 + str(n) for n in range(10)], n=16, max_tokens=100),
    ),
}
"""Within the limits; path and body."""
