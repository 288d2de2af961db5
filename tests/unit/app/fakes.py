"""Fakes of what the gateway talks to: engines that do what a test tells them, and a byte-level
tokenizer.
"""

import asyncio
from collections.abc import Callable, Mapping

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from app.client import QUERY_TIMEOUT_S, DeltaSink, EngineClient, EngineListener
from app.gateway import Gateway
from app.membership import ConnectEngine, EngineAddress, PrepareCard
from cache_tiers.rung import Rung
from engine.messages import (
    Abort,
    CacheEvents,
    EngineRequest,
    FinishReason,
    LoadView,
    ModelCard,
    QueryKind,
    TokenDelta,
    TokenLogprobs,
    Usage,
)
from engine.rung_messages import RungOrder, RungState
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


def fake_logprobs(token_id: int, num_top: int) -> TokenLogprobs:
    """Some, always the same for a token; the token itself is the second likeliest."""
    top_ids = [(token_id + 1) % 256, token_id, *((token_id + n) % 256 for n in range(2, 20))]
    top = [-0.1 - n / 10 - token_id / 1000 for n in range(20)]
    return TokenLogprobs(top[1], top_ids[:num_top], top[:num_top])


Reply = Callable[[EngineRequest, int], list[int]]
"""The tokens of a sample; the stop token follows."""


class FakeEngine:
    """An ``EngineClient`` in the test's hand; with ``reply`` it answers each request by itself."""

    def __init__(
        self,
        engine_id: str = "e0",
        *,
        reply: str | Reply | None = None,
        num_credits: int = 1000,
        card: ModelCard | None = None,
        delay_s: float = 0.0,
    ) -> None:
        self.card = card or make_card(engine_id)
        self.load = LoadView()
        self.num_credits = num_credits
        self.num_gateways = 1
        self.is_accepting = True
        self.is_draining = False
        self.rung_state = RungState(Rung.SERVING)
        self.rung_orders: list[RungOrder] = []
        self.has_successor = True
        """As it was told, or believes without."""
        self.listener: EngineListener | None = None
        self.demands: list[int] = []
        self._wanted = [0, 0, 0]
        """By class, as an engine counts: what was announced, less what was submitted since."""
        self.num_snapshots_asked = 0
        self.requests: dict[str, EngineRequest] = {}
        self.sinks: dict[str, DeltaSink] = {}
        self.samples: dict[str, set[int]] = {}
        """Indices of those that have not ended, by request."""
        self.aborts: list[Abort] = []
        self.num_generated: dict[tuple[str, int], int] = {}
        self._reply: Reply | None = (
            None
            if reply is None
            else (lambda request, index: ids_of(reply))
            if isinstance(reply, str)
            else reply
        )
        self._delay_s = delay_s
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def num_wanted(self) -> int:
        """Requests that it thinks wait for it."""
        return sum(self._wanted)

    def set_demand(self, num_waiting: tuple[int, int, int]) -> None:
        self.demands.append(sum(num_waiting))
        self._wanted = list(num_waiting)

    def submit(self, request: EngineRequest, sink: DeltaSink) -> None:
        assert self.num_credits > 0
        self.num_credits -= 1
        kind = request.service_class
        self._wanted[kind] = max(0, self._wanted[kind] - 1)
        self.requests[request.request_id] = request
        self.sinks[request.request_id] = sink
        self.samples[request.request_id] = set(range(request.num_samples))
        for index in range(request.num_samples):
            self.num_generated[request.request_id, index] = request.num_generated_tokens
            if self._reply is not None:
                rest = self._reply(request, index)[request.num_generated_tokens :]
                task = asyncio.create_task(self._answer(request, index, rest))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    def abort(
        self, request_id: str, num_kept_tokens: int | None = None, index: int | None = None
    ) -> None:
        self.aborts.append(Abort(request_id, num_kept_tokens, index))
        for sample in self.samples.get(request_id, set()) if index is None else {index}:
            is_kept = num_kept_tokens is not None
            reason = FinishReason.STOP if is_kept else FinishReason.ABORT
            asyncio.get_running_loop().call_soon(
                self._end, request_id, sample, reason, num_kept_tokens
            )

    def request_snapshot(self) -> None:
        self.num_snapshots_asked += 1

    def set_rung(self, order: RungOrder) -> None:
        self.rung_orders.append(order)

    def set_successor(self, *, exists: bool) -> None:
        self.has_successor = exists

    async def query(
        self, kind: QueryKind, argument: str, timeout_s: float = QUERY_TIMEOUT_S
    ) -> bytes | None:
        return None

    async def close(self) -> None:
        self.lose("closed by the gateway")

    def say(
        self, request_id: str, text: str, finish: FinishReason | None = None, index: int = 0
    ) -> None:
        self.say_ids(request_id, ids_of(text), finish, index)

    def say_ids(
        self,
        request_id: str,
        token_ids: list[int],
        finish: FinishReason | None = None,
        index: int = 0,
    ) -> None:
        sampling = self.requests[request_id].sampling
        num_logprobs, num_prompt = sampling.num_logprobs, sampling.num_prompt_logprobs
        is_first = self.num_generated[request_id, index] == 0 and index == 0
        self.num_generated[request_id, index] += len(token_ids)
        delta = TokenDelta(
            request_id,
            token_ids,
            finish_reason=finish,
            usage=self._usage(request_id, index),
            index=index,
            logprobs=None
            if num_logprobs is None
            else [fake_logprobs(token_id, num_logprobs) for token_id in token_ids],
            prompt_logprobs=[
                fake_logprobs(token_id, num_prompt)
                for token_id in self.requests[request_id].token_ids[1:]
            ]
            if is_first and num_prompt is not None and len(self.requests[request_id].token_ids) > 1
            else None,
        )
        self.send(delta)

    def send(self, delta: TokenDelta) -> None:
        """As it is."""
        sink = self.sinks[delta.request_id]
        if delta.finish_reason is not None:
            samples = self.samples[delta.request_id]
            samples.discard(delta.index)
            if delta.is_refused or not samples:
                del self.sinks[delta.request_id], self.samples[delta.request_id]
        sink(delta)

    def grant(self, num_credits: int = 1) -> None:
        assert self.listener is not None
        self.num_credits += num_credits
        self.listener.on_credits(self)

    def step(self, load: LoadView, events: CacheEvents | None = None) -> None:
        assert self.listener is not None
        self.load = load
        self.listener.on_step(self, events)

    def stand(
        self, rung: Rung, *, is_moving: bool = False, wake_s: float = 0.0, num_credits: int = 1000
    ) -> None:
        """The engine says where it stands; awake it has ``num_credits`` again."""
        assert self.listener is not None
        self.rung_state = RungState(rung, is_moving, wake_s)
        self.is_accepting = rung is Rung.SERVING and not (is_moving or self.is_draining)
        self.num_credits = num_credits if self.is_accepting else 0
        self.listener.on_rung(self)

    def drain(self) -> None:
        assert self.listener is not None
        self.is_draining = True
        self.is_accepting = False
        self.num_credits = 0
        self.listener.on_draining(self)

    def lose(self, reason: str = "it died") -> None:
        """As when the connection breaks."""
        self.is_accepting = False
        self.num_credits = 0
        for request_id, samples in list(self.samples.items()):
            for index in sorted(samples):
                self.send(TokenDelta(request_id, [], FinishReason.ERROR, error=reason, index=index))
        if self.listener is not None:
            listener, self.listener = self.listener, None
            listener.on_closed(self, reason)

    def _usage(self, request_id: str, index: int) -> Usage:
        num_prompt_tokens = len(self.requests[request_id].token_ids)
        return Usage(num_prompt_tokens, 16, self.num_generated[request_id, index])

    def _is_open(self, request_id: str, index: int) -> bool:
        return index in self.samples.get(request_id, ())

    def _end(
        self, request_id: str, index: int, reason: FinishReason, num_kept_tokens: int | None
    ) -> None:
        if self._is_open(request_id, index):
            if num_kept_tokens is not None:
                self.num_generated[request_id, index] = num_kept_tokens
            self.say_ids(request_id, [], reason, index)

    async def _answer(self, request: EngineRequest, index: int, token_ids: list[int]) -> None:
        room = request.sampling.max_tokens
        is_cut = len(token_ids) + 1 > room
        token_ids = token_ids[:room] if is_cut else [*token_ids, EOS_ID]
        reason = FinishReason.LENGTH if is_cut else FinishReason.STOP
        if not token_ids:  # prefill only
            await asyncio.sleep(self._delay_s)
            self.say_ids(request.request_id, [], reason, index)
        for position, token_id in enumerate(token_ids):
            await asyncio.sleep(self._delay_s)
            if not self._is_open(request.request_id, index):
                return
            is_last = position == len(token_ids) - 1
            self.say_ids(request.request_id, [token_id], reason if is_last else None, index)


def address_of(engine_id: str) -> EngineAddress:
    return EngineAddress(engine_id, Endpoint("127.0.0.1", 1), b"secret")


def connector(engines: Mapping[str, FakeEngine]) -> ConnectEngine:
    """A ``ConnectEngine`` that finds its fakes by id."""

    async def connect(
        address: EngineAddress, listener: EngineListener, prepare: PrepareCard
    ) -> EngineClient:
        engine = engines[address.engine_id]
        engine.card = await prepare(engine.card)
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
