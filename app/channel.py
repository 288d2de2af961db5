"""``EngineClient`` over a ``wire`` connection: what a gateway and an engine replica say to each
other.

Counts credits and sinks; must not know why anything is sent.
"""

import asyncio
import itertools
import logging
from dataclasses import dataclass

import msgspec

from app.client import QUERY_TIMEOUT_S, AskedTooOftenError, DeltaSink, EngineListener
from app.membership import ConnectError, EngineAddress, PrepareCard
from app.stack_traces import stack_of
from cache_tiers.rung import Rung
from engine.messages import (
    Abort,
    CacheSnapshot,
    Demand,
    Draining,
    EngineMessage,
    EngineRequest,
    FinishReason,
    GatewayMessage,
    GetSnapshot,
    Grant,
    LoadView,
    ModelCard,
    Peers,
    Query,
    QueryKind,
    Reply,
    ReturnCredits,
    StepFrame,
    Submit,
    TokenDelta,
)
from engine.rung_messages import RungOrder, RungState, Successor
from wire.connection import Connection, connect
from wire.errors import ConnectionClosed

logger = logging.getLogger(__name__)

CARD_TIMEOUT_S = 10.0

MAX_CREDITS = 1_000_000
"""Far more than any engine runs side by side."""

MAX_GATEWAYS = 1_000_000

MAX_LOAD = 1e15
"""No figure of a load view is larger, in whichever unit."""

_LEAST_OF_CARD = {
    "block_size_tokens": 1,
    "max_model_len": 1,
    "max_request_tokens": 1,
    "vocab_size": 1,
    "max_num_seqs": 0,
}

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(EngineMessage)


async def connect_engine(
    address: EngineAddress, listener: EngineListener, prepare: PrepareCard
) -> "ChannelClient":
    """Dial ``address``, read its card and prepare it. Raises ``ConnectError`` or ``WireError``."""
    connection = await connect(address.endpoint, secret=address.secret)
    try:
        async with asyncio.timeout(CARD_TIMEOUT_S):
            card = _decoder.decode(await connection.receive())
        if not isinstance(card, ModelCard):
            raise ConnectError(f"{address.endpoint} sent {type(card).__name__} before its card")
        if card.engine_id != address.engine_id:
            raise ConnectError(
                f"{address.endpoint} is {card.engine_id!r}, not {address.engine_id!r}"
            )
        _check_card(card)
        card = await prepare(card)
    except (TimeoutError, msgspec.DecodeError, ConnectError) as error:
        connection.close("no valid model card")
        reason = str(error) or f"no model card within {CARD_TIMEOUT_S:g} s"
        raise ConnectError(reason) from error
    except BaseException:  # cancelled, or our bug: nobody else would close the connection
        connection.close("dialing was given up")
        raise
    return ChannelClient(connection, card, listener)


@dataclass(slots=True, eq=False)
class _Open:
    """A request that has not had its last delta."""

    sink: DeltaSink
    samples: set[int]
    """Indices of those that have not had theirs."""


class _NonsenseError(Exception):
    """The engine said what no engine of ours says."""


class ChannelClient:
    """One engine replica at the other end of ``connection``, which it owns."""

    def __init__(
        self,
        connection: Connection,
        card: ModelCard,
        listener: EngineListener,
    ) -> None:
        self._connection = connection
        self._card = card
        self._listener = listener
        self._load = LoadView()
        self._num_gateways = 1
        self._num_credits = 0
        self._num_waiting = [0, 0, 0]
        """Per class: as announced, less what was submitted since."""
        self._is_closed = False
        self._is_draining = False
        self._rung_state = RungState(Rung.SERVING)
        self._open: dict[str, _Open] = {}
        self._queries: dict[int, asyncio.Future[bytes | None]] = {}
        self._query_ids = itertools.count(1)
        self._reader = asyncio.create_task(self._read())

    @property
    def card(self) -> ModelCard:
        return self._card

    @property
    def load(self) -> LoadView:
        return self._load

    @property
    def num_credits(self) -> int:
        return self._num_credits

    @property
    def num_gateways(self) -> int:
        return self._num_gateways

    @property
    def is_accepting(self) -> bool:
        state = self._rung_state
        is_awake = state.rung is Rung.SERVING and not state.is_moving
        return is_awake and not (self._is_draining or self._is_closed)

    @property
    def is_draining(self) -> bool:
        return self._is_draining

    @property
    def rung_state(self) -> RungState:
        return self._rung_state

    def set_demand(self, num_waiting: tuple[int, int, int]) -> None:
        self._num_waiting = list(num_waiting)
        self._return_unneeded_credits()
        self._send(Demand(num_waiting))

    def submit(self, request: EngineRequest, sink: DeltaSink) -> None:
        assert self._num_credits > 0, "submit without a credit"
        self._num_credits -= 1
        service_class = request.service_class
        self._num_waiting[service_class] = max(0, self._num_waiting[service_class] - 1)
        self._open[request.request_id] = _Open(sink, set(range(request.num_samples)))
        self._send(Submit(request))

    def abort(
        self, request_id: str, num_kept_tokens: int | None = None, index: int | None = None
    ) -> None:
        if request_id in self._open:
            self._send(Abort(request_id, num_kept_tokens, index))

    def request_snapshot(self) -> None:
        self._send(GetSnapshot())

    def set_rung(self, order: RungOrder) -> None:
        self._send(order)

    def set_successor(self, *, exists: bool) -> None:
        self._send(Successor(exists))

    async def query(
        self, kind: QueryKind, argument: str, timeout_s: float = QUERY_TIMEOUT_S
    ) -> bytes | None:
        if self._connection.close_reason is not None:
            raise ConnectionClosed(self._connection.close_reason)
        query_id = next(self._query_ids)
        reply: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        self._queries[query_id] = reply
        try:
            self._send(Query(query_id, kind, argument))
            async with asyncio.timeout(timeout_s):
                return await reply
        finally:
            del self._queries[query_id]

    async def close(self) -> None:
        # The engine aborts what is open when the connection goes.
        self._connection.close("the gateway closed the connection")
        await self._reader

    def _return_unneeded_credits(self) -> None:
        is_needed = self.is_accepting and any(self._num_waiting)
        if not is_needed and self._num_credits > 0:
            self._send(ReturnCredits(self._num_credits))
            self._num_credits = 0

    def _send(self, message: GatewayMessage) -> None:
        self._connection.send(_encoder.encode(message))

    async def _read(self) -> None:
        try:
            while True:
                self._handle(_decoder.decode(await self._connection.receive()))
        except ConnectionClosed as closed:
            reason = closed.reason
        except msgspec.DecodeError as error:
            reason = f"the engine sent a message of another version: {error}"
        except _NonsenseError as error:
            reason = f"the engine sent nonsense: {error}"
        except Exception as error:  # our bug: better to dial again than to stay deaf
            logger.error(
                "engine %s: a message could not be handled: %s",
                self._card.engine_id,
                stack_of(error),
            )
            reason = "a message could not be handled"
        self._connection.close(reason)
        self._end(reason)

    def _handle(self, message: EngineMessage) -> None:
        match message:
            case StepFrame():
                _check_load(message.load)
                self._load = message.load
                for delta in message.deltas:
                    self._deliver(delta)
                self._listener.on_step(self, message.events)
            case Grant():
                if not 0 <= message.num_credits <= MAX_CREDITS - self._num_credits:
                    raise _NonsenseError(f"a grant of {message.num_credits} credits")
                self._num_credits += message.num_credits
                if self.is_accepting:
                    self._listener.on_credits(self)
                # The grant may have crossed the word that nobody waits any more.
                self._return_unneeded_credits()
            case CacheSnapshot():
                self._listener.on_snapshot(self, message)
            case Reply():
                reply = self._queries.get(message.query_id)
                if reply is not None and not reply.done():
                    if message.is_throttled:
                        reply.set_exception(AskedTooOftenError())
                    else:
                        reply.set_result(message.payload)
            case Peers():
                if not 1 <= message.num_gateways <= MAX_GATEWAYS:
                    raise _NonsenseError(f"{message.num_gateways} connected gateways")
                self._num_gateways = message.num_gateways
            case Draining():
                self._is_draining = True
                self._return_unneeded_credits()
                self._listener.on_draining(self)
            case RungState():
                _check_rung_state(message)
                self._rung_state = message
                self._return_unneeded_credits()
                self._listener.on_rung(self)
            case ModelCard():
                raise _NonsenseError("a second card")

    def _deliver(self, delta: TokenDelta) -> None:
        request = self._open.get(delta.request_id)
        if request is None or delta.index not in request.samples:
            return
        if delta.finish_reason is not None:
            request.samples.discard(delta.index)
            if delta.is_refused or not request.samples:
                del self._open[delta.request_id]
        request.sink(delta)

    def _end(self, reason: str) -> None:
        self._is_closed = True
        self._num_credits = 0
        lost, self._open = self._open, {}
        error = f"The connection to the engine was lost: {reason}."
        for request_id, request in lost.items():
            for index in sorted(request.samples):
                request.sink(
                    TokenDelta(request_id, [], FinishReason.ERROR, error=error, index=index)
                )
        for reply in self._queries.values():
            if not reply.done():
                reply.set_exception(ConnectionClosed(reason))
        self._listener.on_closed(self, reason)


def _check_card(card: ModelCard) -> None:
    """The gateway computes with these figures. Raises ``ConnectError``."""
    for name, least in _LEAST_OF_CARD.items():
        value = getattr(card, name)
        if value < least:
            raise ConnectError(f"{card.engine_id!r} sent a card with {name} = {value}")


def _check_rung_state(state: RungState) -> None:
    """Estimates are made of these figures. Raises ``_NonsenseError``."""
    if state.rung not in (Rung.PARKED, Rung.SERVING):
        raise _NonsenseError(f"a replica that stands on the rung {state.rung.name}")
    for value in (state.wake_s, state.sleep_s):
        if not 0 <= value <= MAX_LOAD:  # false for NaN, too
            raise _NonsenseError(f"a way between rungs that takes {value} s")


def _check_load(load: LoadView) -> None:
    """The router computes with these figures. Raises ``_NonsenseError``."""
    for name, value in zip(load.__struct_fields__, msgspec.structs.astuple(load), strict=True):
        if not 0 <= value <= MAX_LOAD:  # false for NaN, too
            raise _NonsenseError(f"a load view with {name} = {value}")
