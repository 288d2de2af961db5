"""What this gateway has sent and no engine has confirmed yet. Knows keys, bits and request ids."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from engine.messages import Medium

_BYTES_PER_KEY = 260
"""At most, of one key of one send: the key and its bits as objects, entries of two dicts just
after they grew, and a place in the list of the request's keys.
"""
_BYTES_PER_SEND = 600
"""Request id, entry and list."""


@dataclass(slots=True, eq=False)
class _Send:
    """One request that an engine has not computed yet."""

    keys: Sequence[bytes]
    num_confirmed: int
    """So many of the first keys the engine had said to hold."""
    reach: Medium
    """As far as there."""
    is_evicted: bool = False
    """Since then it took one of those back."""


class SentPrefixes:
    """Bounded by the requests in flight: each is settled by its first delta or by its end."""

    def __init__(self) -> None:
        self.bits_of: dict[bytes, int] = {}
        """Key to the first bits of the engines that it was sent to; to read."""
        self._sends: dict[int, dict[str, _Send]] = {}
        self._num_sends: dict[int, dict[bytes, int]] = {}
        """By bit and key."""
        self._num_keys = 0
        self._num_requests = 0

    @property
    def num_bytes(self) -> int:
        """At most so much is taken."""
        return self._num_keys * _BYTES_PER_KEY + self._num_requests * _BYTES_PER_SEND

    def add(
        self, bit: int, request_id: str, keys: Sequence[bytes], num_confirmed: int, reach: Medium
    ) -> None:
        self.settle(bit, request_id, None)  # an id that is used again replaces what it was
        self._sends.setdefault(bit, {})[request_id] = _Send(keys, num_confirmed, reach)
        self._num_keys += len(keys)
        self._num_requests += 1
        num_sends = self._num_sends.setdefault(bit, {})
        for key in keys:
            num_sends[key] = num_sends.get(key, 0) + 1
            self.bits_of[key] = self.bits_of.get(key, 0) | bit

    def settle(self, bit: int, request_id: str, num_cached_keys: int | None) -> bool:
        """As ``PrefixIndex.settle_send``."""
        send = self._sends.get(bit, {}).pop(request_id, None)
        if send is None:
            return False
        self._num_keys -= len(send.keys)
        self._num_requests -= 1
        self._uncount(bit, send.keys)
        return (
            num_cached_keys is not None
            and num_cached_keys < send.num_confirmed
            and not send.is_evicted
        )

    def note_evicted(self, bit: int, keys: Iterable[bytes], medium: Medium) -> None:
        """The engine no longer holds ``keys`` there."""
        bits_of = self.bits_of
        gone = {key for key in keys if bits_of.get(key, 0) & bit}
        if gone:
            for send in self._sends[bit].values():
                if medium <= send.reach and not gone.isdisjoint(send.keys[: send.num_confirmed]):
                    send.is_evicted = True

    def forget(self, bit: int) -> None:
        """The engine is gone."""
        for send in self._sends.pop(bit, {}).values():
            self._num_keys -= len(send.keys)
            self._num_requests -= 1
        self._clear(bit, self._num_sends.pop(bit, {}))

    def move(self, bit: int, new_bit: int) -> None:
        """The engine has another bit, and what it said is forgotten."""
        sends = self._sends.get(bit, {})
        self.forget(bit)
        for request_id, send in sends.items():
            self.add(new_bit, request_id, send.keys, 0, send.reach)

    def check_integrity(self, live_bits: int) -> None:
        """For tests."""
        expected: dict[bytes, int] = {}
        for bit, sends in self._sends.items():
            assert bit & live_bits, "sends to an engine that is gone"
            for send in sends.values():
                for key in send.keys:
                    expected[key] = expected.get(key, 0) | bit
        assert self.bits_of == expected
        num_keys = [len(send.keys) for sends in self._sends.values() for send in sends.values()]
        assert (self._num_requests, self._num_keys) == (len(num_keys), sum(num_keys))

    def _uncount(self, bit: int, keys: Sequence[bytes]) -> None:
        """One request with ``keys`` is settled; others may have been sent with some of them."""
        num_sends = self._num_sends[bit]
        last: list[bytes] = []
        for key in keys:
            num_left = num_sends[key] - 1
            if num_left:
                num_sends[key] = num_left
            else:
                del num_sends[key]
                last.append(key)
        self._clear(bit, last)
        if not self._sends[bit]:
            del self._sends[bit], self._num_sends[bit]

    def _clear(self, bit: int, keys: Iterable[bytes]) -> None:
        bits_of = self.bits_of
        for key in keys:
            bits = bits_of[key]
            if bits == bit:
                del bits_of[key]
            else:
                bits_of[key] = bits & ~bit
