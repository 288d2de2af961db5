"""What gateways and the autoscaler tell each other, once a second: demand up, orders down.

Frozen, msgpack-able structs. Counts only ever grow while a gateway lives, so that a report that was
lost loses nothing; whoever compares two reports must know that they are of one ``gateway_id``.
"""

import msgspec

from cache_tiers.rung import Rung
from engine.messages import LoadView

BUCKETS_PER_OCTAVE = 4
"""Histograms count by the logarithm: bucket ``i`` holds values up to ``2 ** (i / 4)`` units, the
first one everything up to one unit, the last one everything above its lower bound.
"""
NUM_TIME_BUCKETS = 81
"""Units of a millisecond: up to 1049 s."""
NUM_LENGTH_BUCKETS = 81
"""Units of a token: up to a million."""


class EngineSeen(msgspec.Struct, frozen=True, array_like=True):
    """One engine replica as a gateway sees it."""

    engine_id: str
    node_id: str
    rung: Rung
    is_moving: bool
    """Between rungs."""
    is_draining: bool
    """Serve stops it."""
    is_seeded: bool
    """The router counts it: its index is here and its hottest prefixes were sent for."""
    max_num_seqs: int
    load: LoadView
    wake_s: float = 0.0
    """As in ``engine.rung_messages.RungState``."""
    sleep_s: float = 0.0
    started_from: Rung = Rung.COLD
    """As in ``engine.messages.ModelCard``."""
    start_s: float = 0.0


class ModelDemand(msgspec.Struct, frozen=True, array_like=True):
    """Of one model at one gateway. All but what is marked so counts up from the gateway's start."""

    model: str
    num_arrived: int
    """Requests that were well formed, refused ones included."""
    num_refused: int
    """For want of engines or room: 503, 504."""
    num_prompt_tokens: int
    """Of arrived requests."""
    num_uncached_tokens: int
    """Prompt tokens that engines had to compute, of requests that have begun."""
    num_begun: int
    """Requests with a first token, once each."""
    num_cached_known_tokens: int
    """Prompt tokens of the requests in ``num_begun``: the hit rate's denominator."""
    num_generated_tokens: int
    num_ended: int
    """Requests whose answer ended."""
    num_waiting: int
    """Now: without an engine."""
    num_waiting_tokens: int
    """Now: their prompt tokens."""
    oldest_wait_s: float
    """Now; 0 if nothing waits."""
    ttft_counts: tuple[int, ...]
    """Histogram over ``NUM_TIME_BUCKETS``, from arrival to the first token."""
    tpot_counts: tuple[int, ...]
    """Histogram over ``NUM_TIME_BUCKETS`` of each answer's mean time per token after the first."""
    prompt_counts: tuple[int, ...]
    """Histogram over ``NUM_LENGTH_BUCKETS`` of arrived requests."""
    answer_counts: tuple[int, ...]
    """Histogram over ``NUM_LENGTH_BUCKETS`` of ended requests."""
    engines: tuple[EngineSeen, ...]
    """Now."""


class DemandReport(msgspec.Struct, frozen=True, array_like=True):
    """All that one gateway process knows."""

    gateway_id: str
    """Another one after each start."""
    made_s: float
    """By the gateway's monotonic clock: periods between its reports, never times across."""
    models: tuple[ModelDemand, ...]


class ModelOrders(msgspec.Struct, frozen=True, array_like=True):
    """What the autoscaler wants of one model's engines."""

    model: str
    rungs: dict[str, Rung]
    """Engine id to PARKED or SERVING; who isn't named stays as it is."""
    next_ready_s: float | None = None
    """From now, until another replica serves; None: none is on its way."""


class ScaleOrders(msgspec.Struct, frozen=True, array_like=True):
    """Down, with each question for a report."""

    epoch: int
    """As in ``engine.rung_messages.RungOrder``."""
    sequence: int
    models: tuple[ModelOrders, ...] = ()
