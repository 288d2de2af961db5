"""What gateways and an engine replica say to each other of its place on the warm ladder.

A part of ``engine.messages``, which joins all that crosses the channel.
"""

import msgspec

from cache_tiers.rung import Rung


class RungState(msgspec.Struct, frozen=True, tag="rung_state"):
    """Where the replica stands on the warm ladder: news, or among the first messages.

    Nothing said is as good as SERVING. What isn't SERVING, or moves, grants no credits.
    """

    rung: Rung
    is_moving: bool = False
    """It leaves ``rung`` for the other one: running requests end or move, or the pool is made."""
    wake_s: float = 0.0
    """What the last way from PARKED to SERVING took; 0 while unknown, like the next one."""
    sleep_s: float = 0.0
    """What the last way from SERVING to PARKED took, running requests included."""


class RungOrder(msgspec.Struct, frozen=True, tag="rung_order"):
    """Sleep (PARKED) or wake (SERVING); one that is obeyed already changes nothing.

    All gateways pass the same orders on: of two the one with the larger (epoch, sequence) holds,
    whichever comes last. An epoch of which nothing comes any more gives way to an earlier one.
    """

    rung: Rung
    epoch: int
    """Of who decides: a later start has a larger one."""
    sequence: int


class Successor(msgspec.Struct, frozen=True, tag="successor"):
    """Whether others could go on with this gateway's requests if the replica left now or went to
    sleep: news. Nothing said is as good as yes.
    """

    exists: bool
    """Another engine with the same weights takes requests."""
