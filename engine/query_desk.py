"""Answers what operators ask through a gateway: records at once, a profile when it is recorded.

Must not know requests or how steps are recorded.
"""

import time
from collections.abc import Callable

import msgspec

from engine.gateway_link import GatewayLink
from engine.gateways import Gateways
from engine.messages import Query
from engine.profile import Profile
from engine.profile_orders import ProfileOrders
from engine.rank_messages import RankCommand, Record
from engine.records import Records


class QueryDesk:
    """Owner of who waits for a profile."""

    def __init__(
        self, records: Records, gateways: Gateways, send: Callable[[RankCommand], None]
    ) -> None:
        """``send``: to the step loop."""
        self._records = records
        self._gateways = gateways
        self._send = send
        self._orders = ProfileOrders()
        self._encode = msgspec.msgpack.Encoder().encode

    def take(self, gateway: GatewayLink, query: Query) -> None:
        """Raises ``ProtocolError``, or ``msgspec.MsgspecError``, for what no gateway asks."""
        is_allowed = gateway.queries.allows(time.monotonic())
        if is_allowed and query.kind == "profile":
            order = self._orders.take(gateway.source, query)
            if isinstance(order, Record):
                self._send(order)
                return
            reply = order
        else:
            reply = self._records.answer(query, is_allowed=is_allowed)
        gateway.connection.send(self._encode(reply))

    def recorded(self, profile: Profile) -> None:
        """Precondition: somebody asked for it."""
        source, reply = self._orders.finished(profile)
        self._gateways.send(source, reply)
