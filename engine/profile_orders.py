"""Who waits for a profile: one gateway at a time, since one recording runs at a time.

Owned by the engine's front. Must not know connections or how steps are recorded.
"""

from typing import NamedTuple

import msgspec

from engine.errors import ProtocolError
from engine.messages import Query, Reply
from engine.profile import Profile, ProfileOrder, ProfileRefused
from engine.rank_messages import Record


class AddressedReply(NamedTuple):
    """For the gateway ``source``, if it is still here."""

    source: int
    reply: Reply


class ProfileOrders:
    """Call order: ``take``, then ``finished`` with what comes of it."""

    def __init__(self) -> None:
        self._asked: tuple[int, int] | None = None
        """Source and query id."""
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.json.Decoder(ProfileOrder).decode

    def take(self, source: int, query: Query) -> Record | Reply:
        """What the step loop is to be told, or the refusal. Raises ``ProtocolError``, or
        ``msgspec.MsgspecError``, for an order that no gateway gives."""
        order = self._decode(query.argument)
        if not order.is_valid:
            raise ProtocolError(f"a profile of {order.num_steps} steps in {order.timeout_s} s")
        if self._asked is not None:
            return Reply(query.query_id, self._encode(ProfileRefused()))
        self._asked = (source, query.query_id)
        return Record(order)

    def finished(self, profile: Profile) -> AddressedReply:
        """Precondition: ``take`` returned a ``Record`` since the last call."""
        assert self._asked is not None, "nobody asked for a profile"
        source, query_id = self._asked
        self._asked = None
        return AddressedReply(source, Reply(query_id, self._encode(profile)))
