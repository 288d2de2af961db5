"""Fakes of what the gateway talks to: engines that do what a test tells them, and a byte-level
tokenizer.
"""

import asyncio
from collections.abc import Callable, Mapping

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from app.client import DeltaSink, EngineClient, EngineListener
from app.gateway import Gateway
from app.membership import ConnectEngine, EngineAddress
from engine.messages import (
    CacheEvents,
    EngineRequest,
    FinishReason,
    LoadView,
    ModelCard,
    TokenDelta,
    Usage,
)
from wire.endpoint import Endpoint

CHATML = (
    "{% for message in messages %}"
    "{% if message.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
    "{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{% endfor %}{{ '<|im_start|>assistant\n' }}"
)


def byte_tokenizer() -> Tokenizer:
    """One token per byte (its own value is not its id), and the two special tokens of ChatML."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {char: index for index, char in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken("<|im_start|>", special=True), AddedToken("<|im_end|>", special=True)]
    )
    return tokenizer


TOKENIZER = byte_tokenizer()
IM_START_ID = 256
EOS_ID = 257


def ids_of(text: str) -> list[int]:
    """One id per byte."""
    ids: list[int] = TOKENIZER.encode(text, add_special_tokens=False).ids
    return ids


def make_card(engine_id: str = "e0", *, model: str = "m", max_model_len: int = 2048) -> ModelCard:
    return ModelCard(
        engine_id=engine_id,
        model=model,
        weights_revision="r",
        root_key=b"root-of-" + model.encode(),
        block_size_tokens=16,
        max_request_tokens=max_model_len,
        max_model_len=max_model_len,
        vocab_size=258,
        eos_token_ids=[EOS_ID],
        tokenizer_json=TOKENIZER.to_str().encode(),
        chat_template=CHATML,
        bos_token=None,
        eos_token="<|im_end|>",
        created_s=1_700_000_000,
    )


class FakeEngine:
    """An ``EngineClient`` in the test's hand; with ``reply`` it answers each request by itself."""

    def __init__(
        self,
        engine_id: str = "e0",
        *,
        reply: str | None = None,
        num_credits: int = 1000,
        card: ModelCard | None = None,
        delay_s: float = 0.0,
    ) -> None:
        self.card = card or make_card(engine_id)
        self.load = LoadView()
        self.num_credits = num_credits
        self.is_accepting = True
        self.listener: EngineListener | None = None
        self.demands: list[int] = []
        self.num_wanted = 0
        """As an engine counts: what was announced, less what was submitted since."""
        self.requests: dict[str, EngineRequest] = {}
        self.sinks: dict[str, DeltaSink] = {}
        self.aborts: list[tuple[str, int | None]] = []
        self.num_generated: dict[str, int] = {}
        self._reply = reply
        self._delay_s = delay_s
        self._tasks: set[asyncio.Task[None]] = set()

    def set_demand(self, num_waiting: int) -> None:
        self.demands.append(num_waiting)
        self.num_wanted = num_waiting

    def submit(self, request: EngineRequest, sink: DeltaSink) -> None:
        assert self.num_credits > 0
        self.num_credits -= 1
        self.num_wanted = max(0, self.num_wanted - 1)
        self.requests[request.request_id] = request
        self.sinks[request.request_id] = sink
        self.num_generated[request.request_id] = 0
        if self._reply is not None:
            task = asyncio.create_task(self._answer(request, ids_of(self._reply)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def abort(self, request_id: str, num_kept_tokens: int | None = None) -> None:
        self.aborts.append((request_id, num_kept_tokens))
        if request_id in self.sinks:
            is_kept = num_kept_tokens is not None
            reason = FinishReason.STOP if is_kept else FinishReason.ABORT
            asyncio.get_running_loop().call_soon(self._end, request_id, reason, num_kept_tokens)

    async def close(self) -> None:
        self.lose("closed by the gateway")

    def say(self, request_id: str, text: str, finish: FinishReason | None = None) -> None:
        self.say_ids(request_id, ids_of(text), finish)

    def say_ids(
        self, request_id: str, token_ids: list[int], finish: FinishReason | None = None
    ) -> None:
        self.num_generated[request_id] += len(token_ids)
        usage = self._usage(request_id)
        sink = self.sinks[request_id] if finish is None else self.sinks.pop(request_id)
        sink(TokenDelta(request_id, token_ids, finish_reason=finish, usage=usage))

    def grant(self, num_credits: int = 1) -> None:
        assert self.listener is not None
        self.num_credits += num_credits
        self.listener.on_credits(self)

    def step(self, load: LoadView, events: CacheEvents | None = None) -> None:
        assert self.listener is not None
        self.load = load
        self.listener.on_step(self, events)

    def lose(self, reason: str = "it died") -> None:
        """As when the connection breaks."""
        self.is_accepting = False
        self.num_credits = 0
        for request_id in list(self.sinks):
            sink = self.sinks.pop(request_id)
            sink(TokenDelta(request_id, [], finish_reason=FinishReason.ERROR, error=reason))
        if self.listener is not None:
            listener, self.listener = self.listener, None
            listener.on_closed(self, reason)

    def _usage(self, request_id: str) -> Usage:
        num_prompt_tokens = len(self.requests[request_id].token_ids)
        return Usage(num_prompt_tokens, 16, self.num_generated[request_id])

    def _end(self, request_id: str, reason: FinishReason, num_kept_tokens: int | None) -> None:
        if request_id not in self.sinks:
            return
        if num_kept_tokens is not None:
            self.num_generated[request_id] = num_kept_tokens
        self.say_ids(request_id, [], reason)

    async def _answer(self, request: EngineRequest, token_ids: list[int]) -> None:
        room = request.sampling.max_tokens
        is_cut = len(token_ids) + 1 > room
        token_ids = token_ids[:room] if is_cut else [*token_ids, EOS_ID]
        for position, token_id in enumerate(token_ids):
            await asyncio.sleep(self._delay_s)
            if request.request_id not in self.sinks:
                return
            is_last = position == len(token_ids) - 1
            reason = FinishReason.LENGTH if is_cut else FinishReason.STOP
            self.say_ids(request.request_id, [token_id], reason if is_last else None)


def address_of(engine_id: str) -> EngineAddress:
    return EngineAddress(engine_id, Endpoint("127.0.0.1", 1), b"secret")


def connector(engines: Mapping[str, FakeEngine]) -> ConnectEngine:
    """A ``ConnectEngine`` that finds its fakes by id."""

    async def connect(address: EngineAddress, listener: EngineListener) -> EngineClient:
        engine = engines[address.engine_id]
        engine.listener = listener
        return engine

    return connect


async def until(condition: Callable[[], object], timeout_s: float = 2.0) -> None:
    """Wait for ``condition``, as nothing tells a test when it holds."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def join(gateway: Gateway, model: str, engines: Mapping[str, FakeEngine]) -> None:
    """Make ``engines`` the replicas of ``model`` and wait for the connections."""
    gateway.set_engines(model, {engine_id: address_of(engine_id) for engine_id in engines})
    dispatcher = gateway.dispatchers[model]
    await until(lambda: {member.engine_id for member in dispatcher.fleet} == set(engines))
