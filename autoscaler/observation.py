"""What the planner sees of the fleet at one time. Frozen data; made by whoever can look.

"Unknown" is ``None``, never zero: a metrics outage must not look like a quiet night.
"""

from dataclasses import dataclass

from cache_tiers.rung import Rung
from engine.messages import LoadView


@dataclass(frozen=True, slots=True)
class Demand:
    """What came to one model in the ``period_s`` that end now."""

    period_s: float
    num_arrived: float
    num_prompt_tokens: float
    num_uncached_tokens: float
    """Prompt tokens that had to be computed, of requests that began."""
    num_generated_tokens: float
    num_begun: float
    num_ended: float
    num_refused: float = 0.0
    num_waiting: float = 0.0
    """Now, like the next two: without an engine."""
    num_waiting_tokens: float = 0.0
    oldest_wait_s: float = 0.0
    num_ttft_late: float = 0.0
    """Of ``num_begun`` those above the TTFT target."""
    num_tpot_late: float = 0.0
    """Of ``num_ended`` those above the TPOT target."""
    prompt_len_p95: float | None = None
    """Tokens; of the last minutes, like the next one; None while unknown."""
    answer_len_p95: float | None = None


@dataclass(frozen=True, slots=True)
class ReplicaObservation:
    """One engine replica that is there, or one that Serve is starting."""

    engine_id: str
    rung: Rung
    node_id: str = ""
    is_moving: bool = False
    """Between PARKED and SERVING."""
    is_draining: bool = False
    """Leaves; what it still serves is no capacity."""
    is_seeded: bool = True
    """The router counts it."""
    load: LoadView | None = None
    """None: silent, so nothing is known of it."""
    wake_s: float = 0.0
    """As the replica measured it last; 0 while unknown."""
    sleep_s: float = 0.0
    max_num_seqs: int = 0
    """Most sequences that run at once; 0 while unknown."""
    started_from: Rung = Rung.COLD
    """Where its weights stood when it began to start: COLD, ON_DISK or STAGED."""


@dataclass(frozen=True, slots=True)
class StartingReplica:
    """Asked of Serve and not there yet."""

    asked_s: float
    """When, on the planner's clock."""
    rung: Rung = Rung.COLD
    """What it starts from."""


@dataclass(frozen=True, slots=True)
class ServeObservation:
    """What Serve's controller said of the deployment last."""

    target_num_replicas: int
    num_running: int
    min_replicas: int
    max_replicas: int


@dataclass(frozen=True, slots=True)
class ModelObservation:
    """One model now."""

    model: str
    demand: Demand | None
    """None: some gateway didn't answer, so nobody knows how much came."""
    replicas: tuple[ReplicaObservation, ...] = ()
    serve: ServeObservation | None = None
    """None: Serve's controller has not asked yet, or is silent."""
    starting: tuple[StartingReplica, ...] | None = None
    """Replicas that are not there yet, from an observer who knows from which rung they start. None:
    the planner counts what Serve was asked for and what has not come."""
    num_nodes_staged: int | None = None
    """Nodes that hold the weights in CPU memory and have room for a replica; one with room for
    several counts as often. None: unknown, like the next ones."""
    num_nodes_on_disk: int | None = None
    """The same of those that hold them on their disk only."""
    num_nodes: int | None = None
    """Nodes that could run a replica if nothing else did, counted as often as replicas fit."""
    num_nodes_failed: int | None = None
    """Nodes that can't hold the weights as they were told."""


@dataclass(frozen=True, slots=True)
class FleetObservation:
    """Everything at one time."""

    now_s: float
    """Monotonic; all ages and plans count by it."""
    local_s: float
    """Seconds since 1970 of the wall clock, for schedules and the time of day and week only."""
    models: tuple[ModelObservation, ...]
    node_times_s: tuple[float, ...] = ()
    """What the last nodes took that were asked for, until their caches were ready; oldest first."""
