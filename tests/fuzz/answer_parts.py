"""What holds between the parts of a 2xx answer of a generating route, whole or streamed."""

import json
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]


@dataclass(slots=True)
class Choice:
    """One choice, put together from the pieces of a stream or from one whole."""

    text: str = ""
    finish_reason: str | None = None
    is_chat: bool = False
    spelled: bytearray | None = None
    """By the bytes of its tokens, if a chat's log probabilities came."""
    offsets: list[int] = field(default_factory=list)

    def add(self, piece: Json) -> None:
        assert self.finish_reason is None, "a choice goes on after its end"
        message = piece.get("message", piece.get("delta"))
        self.is_chat = message is not None
        self.text += (message.get("content") or "") if message is not None else piece["text"]
        self.finish_reason = piece["finish_reason"]
        logprobs = piece.get("logprobs")
        if logprobs is None:
            return
        if self.is_chat:
            self.spelled = self.spelled or bytearray()
            for token in logprobs["content"]:
                self.spelled += bytes(token["bytes"])
        else:
            lengths = {len(values) for values in logprobs.values() if values is not None}
            assert len(lengths) <= 1, "log probabilities of different lengths"
            self.offsets += logprobs["text_offset"]

    def check(self) -> None:
        """It has ended and its log probabilities spell it."""
        assert self.finish_reason in ("stop", "length")
        if self.spelled is not None:
            assert self.spelled.decode() == self.text, "the tokens spell another text"
        assert self.offsets == sorted(self.offsets)
        assert max(self.offsets, default=0) <= len(self.text), "an offset beyond the text"


def check_whole(answer: Json) -> None:
    for index, whole in enumerate(answer["choices"]):
        assert whole["index"] == index
        choice = Choice()
        choice.add(whole)
        choice.check()
    check_usage(answer["usage"])


def check_events(body: bytes) -> None:
    """A stream is complete: every choice ends once, nothing failed, and ``[DONE]`` is last."""
    events = [event for event in body.decode().split("\n\n") if event and event[0] != ":"]
    assert all(event.startswith("data: ") for event in events), "an event of another kind"
    assert events[-1] == "data: [DONE]", "the stream has no end"
    choices: dict[int, Choice] = {}
    for event in events[:-1]:
        chunk = json.loads(event.removeprefix("data: "))
        assert "error" not in chunk, "the answer failed"
        for piece in chunk["choices"]:
            choices.setdefault(piece["index"], Choice()).add(piece)
        if chunk.get("usage") is not None:
            check_usage(chunk["usage"])
    assert sorted(choices) == list(range(len(choices)))
    assert choices, "a stream without choices"
    for choice in choices.values():
        choice.check()


def check_usage(usage: Json) -> None:
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["prompt_tokens_details"]["cached_tokens"] <= usage["prompt_tokens"]
