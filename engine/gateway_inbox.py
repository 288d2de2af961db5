"""What a gateway says, and who is told of it: the ledger, the step loop, the desk of queries, the
keeper of the rung.

Must not know connections, nor what became of a request. Lives on the front's event loop.
"""

from collections.abc import Callable

import msgspec

from engine.credits import CreditLedger
from engine.errors import ProtocolError
from engine.gateway_link import GatewayLink
from engine.messages import (
    Abort,
    Demand,
    GatewayMessage,
    GetSnapshot,
    Query,
    ReturnCredits,
    Submit,
)
from engine.open_requests import OpenRequests
from engine.query_desk import QueryDesk
from engine.rank_messages import FromGateway
from engine.records import Records
from engine.rung_keeper import RungKeeper
from engine.rung_messages import RungOrder, Successor

MAX_REQUEST_ID_CHARS = 256
"""Records keep the ids."""


class GatewayInbox:
    """Of all gateways of one front."""

    def __init__(
        self,
        ledger: CreditLedger,
        open_requests: OpenRequests,
        records: Records,
        queries: QueryDesk,
        rung: RungKeeper,
        *,
        send: Callable[[FromGateway], None],
        grant: Callable[[], None],
    ) -> None:
        """``send``: to the step loop; ``grant``: what the ledger may have to give now."""
        self._ledger = ledger
        self._open = open_requests
        self._records = records
        self._queries = queries
        self._rung = rung
        self._send = send
        self._grant = grant
        self._decode = msgspec.msgpack.Decoder(GatewayMessage).decode

    def take(self, gateway: GatewayLink, payload: bytes) -> None:
        """One frame. Raises ``CreditError``, ``ProtocolError`` and ``MsgspecError`` for a gateway
        that breaks the protocol.
        """
        match self._decode(payload):
            case Submit() as submit:
                self._submit(gateway.source, submit, payload)
                self._grant()
            case Abort(request_id=request_id):
                if self._open.can_abort(gateway.source, request_id):
                    self._send(FromGateway(gateway.source, payload))
            case Demand(num_waiting=num_waiting):
                self._ledger.set_demand(gateway.source, num_waiting)
                self._grant()
            case ReturnCredits(num_credits=num_credits):
                self._ledger.returned(gateway.source, num_credits)
                self._grant()
            case GetSnapshot():
                gateway.ask_snapshot()
            case Query() as query:
                self._queries.take(gateway, query)
            case RungOrder() as order:
                self._rung.order(order)
            case Successor(exists=exists):
                gateway.has_successor = exists

    def _submit(self, source: int, message: Submit, payload: bytes) -> None:
        request = message.request
        if len(request.request_id) > MAX_REQUEST_ID_CHARS:
            raise ProtocolError(f"a request id is longer than {MAX_REQUEST_ID_CHARS} characters")
        self._open.submitted(source, request)
        self._records.submitted(request)
        self._send(FromGateway(source, payload))
