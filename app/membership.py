"""Keeps one connection to every engine replica that discovery names: dial, retry with backoff, let
go.

Must not know where the addresses come from, nor what is sent.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from app.client import EngineClient, EngineListener
from app.dispatch import Dispatcher
from engine.messages import ModelCard
from wire.endpoint import Endpoint
from wire.errors import WireError

logger = logging.getLogger(__name__)

MIN_BACKOFF_S = 0.1
MAX_BACKOFF_S = 5.0


@dataclass(frozen=True, slots=True)
class EngineAddress:
    """Where an engine replica listens, and the secret of its channel."""

    engine_id: str
    endpoint: Endpoint
    secret: bytes = field(repr=False)


class ConnectError(Exception):
    """The replica could not be reached, or is not what its address said."""


PrepareCard = Callable[[ModelCard], Awaitable[ModelCard]]
"""Does what must be done before the first request; returns the card to keep. Must not raise."""

ConnectEngine = Callable[[EngineAddress, EngineListener, PrepareCard], Awaitable[EngineClient]]
"""Dials an engine, has its card and prepares it. Raises ``ConnectError`` or ``WireError``. The
listener hears nothing before the coroutine has returned to its caller.
"""


class Membership:
    """The connections of one model: one task per address."""

    def __init__(
        self, dispatcher: Dispatcher, connect: ConnectEngine, prepare: PrepareCard
    ) -> None:
        self._dispatcher = dispatcher
        self._connect = connect
        self._prepare = prepare
        self._tasks: dict[EngineAddress, asyncio.Task[None]] = {}
        self._addresses: Mapping[str, EngineAddress] = {}
        self._num_gateways: int | None = None

    def set_addresses(
        self, addresses: Mapping[str, EngineAddress], num_gateways: int | None = None
    ) -> None:
        """The replicas there are now: new ones are dialled, if this gateway serves their cell;
        others finish what runs on them.

        ``num_gateways``: so many connect to them, this one included; None: nobody knows.
        """
        self._addresses, self._num_gateways = addresses, num_gateways
        self.reconfigure()

    def reconfigure(self) -> None:
        """The configuration may have changed: which cells this gateway serves follows from it."""
        addresses = self._addresses
        cells = self._dispatcher.fleet.cells
        cells.name_all(addresses, self._dispatcher.cells_per_gateway)
        num_unreached = cells.num_unreached(self._num_gateways) if self._num_gateways else 0
        if num_unreached:
            logger.warning(
                "model %s: no request reaches the replicas of %d cells, as %s gateways serve %s "
                "each: raise cells_per_gateway, or the number of gateways",
                self._dispatcher.model,
                num_unreached,
                self._num_gateways,
                self._dispatcher.cells_per_gateway,
            )
        wanted = {address for id_, address in addresses.items() if cells.serves(id_)}
        self._dispatcher.readiness.is_connecting = bool(wanted)
        for address in [address for address in self._tasks if address not in wanted]:
            self._tasks.pop(address).cancel()
            self._dispatcher.engines.retire(address.engine_id)
        for address in wanted - self._tasks.keys():
            self._tasks[address] = asyncio.create_task(self._stay_connected(address))

    def address_of(self, engine_id: str) -> EngineAddress | None:
        """None if discovery does not name it any more."""
        addresses = (address for address in self._tasks if address.engine_id == engine_id)
        return next(addresses, None)

    async def close(self) -> None:
        """Stop dialling; the dispatcher closes the connections."""
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _stay_connected(self, address: EngineAddress) -> None:
        backoff_s = MIN_BACKOFF_S
        while True:
            try:
                # Discovery may drop an engine for a moment while it still finishes requests.
                member = self._dispatcher.engines.reinstate(address.engine_id)
                if member is None:
                    client = await self._connect(address, self._dispatcher.engines, self._prepare)
                    # No await in between: the listener must know the engine before its first frame.
                    member = self._dispatcher.engines.add(client)
            except (ConnectError, WireError) as error:
                logger.warning("engine %s: %s; retrying", address.engine_id, error)
            except Exception:  # our bug: without this the replica would stay unused in silence
                logger.exception("engine %s: dialling failed; retrying", address.engine_id)
            else:
                logger.info("engine %s connected at %s", address.engine_id, address.endpoint)
                backoff_s = MIN_BACKOFF_S
                await member.closed.wait()
                logger.info("engine %s disconnected", address.engine_id)
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, MAX_BACKOFF_S)
