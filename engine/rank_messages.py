"""What the front and the processes of the ranks say to each other over their pipes.

Gateways' frames go down and step frames come up as they are, already encoded: the front forwards
bytes and only counts. A *source* is the number that the front gave to a gateway's connection.
"""

import msgspec

from cache_tiers.block_image import ImageLayout
from cache_tiers.rung import Rung
from cache_tiers.weights.messages import Stage
from engine.messages import CacheEvents, LoadView
from engine.observations import EngineStats, MemoryBytes, RequestNote, StepRecord
from engine.profile import Profile, ProfileOrder
from engine.step import SampledToken, StepPlan


class FromGateway(msgspec.Struct, frozen=True, array_like=True, tag="gateway"):
    """A ``Submit`` or ``Abort`` of ``source``, as it came."""

    source: int
    payload: bytes


class GatewayGone(msgspec.Struct, frozen=True, array_like=True, tag="gone"):
    """The connection of ``source`` closed: abort all its requests."""

    source: int


class Record(msgspec.Struct, frozen=True, array_like=True, tag="record"):
    """Record the next steps; the profile comes with a ``StepReport``. One at a time."""

    order: ProfileOrder


class StoreKept(msgspec.Struct, frozen=True, array_like=True, tag="store_kept"):
    """The replica leaves: let the node's cache have all that only the accelerator keeps; a
    ``StepReport`` says when it has. A later one takes the place of one that is not done.
    """

    number: int


class HandOver(msgspec.Struct, frozen=True, array_like=True, tag="hand_over"):
    """The replica leaves or goes to sleep: requests end with ``MOVED``, those that come from now on
    at once. Those with several samples of which one has begun go on to their end.
    """

    only_waiting: bool
    """Those that run go on."""


class Stay(msgspec.Struct, frozen=True, array_like=True, tag="stay"):
    """The replica stays after all: requests that come are served."""


class Sleep(msgspec.Struct, frozen=True, array_like=True, tag="sleep"):
    """Give the KV pool's memory back, and forget all prefixes. Nobody is here, and a ``HandOver``
    holds. A ``StepReport`` brings the ``RungChange``.
    """


class Wake(msgspec.Struct, frozen=True, array_like=True, tag="wake"):
    """Have a KV pool again and serve. A ``StepReport`` brings the ``RungChange``."""


class RungChange(msgspec.Struct, frozen=True, array_like=True):
    """What a ``Sleep`` or ``Wake`` did."""

    rung: Rung
    """Where the ranks stand now."""
    failure: str | None = None
    """Why not where they should; one line that says what is missing."""


class Ready(msgspec.Struct, frozen=True, array_like=True, tag="ready"):
    """The model is loaded and warm; the step loop runs."""

    num_blocks: int
    max_model_len: int
    max_request_tokens: int
    """Most tokens that one sequence can hold here."""
    vocab_size: int
    weights_revision: str
    load: LoadView
    load_time_s: float
    """From the process's first line to the loaded model."""
    warm_up_time_s: float
    memory: MemoryBytes | None = None
    """Of each rank; None for a runner that holds no model."""
    stages: tuple[Stage, ...] = ()
    """What the start of rank 0 took, in order."""


class Loaded(msgspec.Struct, frozen=True, array_like=True, tag="loaded"):
    """A rank other than 0 holds its part of the model and waits for plans."""

    load_time_s: float
    """From the process's first line to the loaded model."""


class Failed(msgspec.Struct, frozen=True, array_like=True, tag="failed"):
    """The process could not start, or cannot go on, and ends now."""

    message: str
    """One line that says what to change."""


class SourceFrame(msgspec.Struct, frozen=True, array_like=True):
    """What one step did for one source."""

    source: int
    payload: bytes
    """An encoded ``engine.messages.StepFrame``."""
    num_finished: int
    """Samples whose last delta is in it; a refused request counts as many as it asked for."""
    num_finished_of_class: tuple[int, int, int] = (0, 0, 0)
    """The same per ``ServiceClass``."""


class StepReport(msgspec.Struct, frozen=True, array_like=True, tag="step"):
    """What one step did."""

    frames: list[SourceFrame]
    load: LoadView
    events: CacheEvents | None
    """Also in every frame; here for the gateways that have none."""
    num_submits_taken: int
    """Requests that entered since the report before; ``load`` counts them."""
    stats: EngineStats = EngineStats()
    record: StepRecord | None = None
    """None if nothing was computed."""
    notes: list[RequestNote] = []
    profile: Profile | None = None
    """What a ``Record`` asked for."""
    kept_stored: int | None = None
    """The number of the ``StoreKept`` that is done, as far as there was room."""
    rung_change: RungChange | None = None


class PlanFrame(msgspec.Struct, frozen=True, array_like=True, tag="plan"):
    """From rank 0 to each of the others: one step. Answered by ``Transferred`` if it moves KV."""

    plan: StepPlan
    sampled: tuple[SampledToken, ...]
    """By rank 0, in the step before."""


class JoinArena(msgspec.Struct, frozen=True, array_like=True, tag="join"):
    """From rank 0 to each of the others: later plans move KV. Answered by ``Joined``."""

    layout: ImageLayout
    socket_path: str
    """Of the node's cache."""


class LeaveArena(msgspec.Struct, frozen=True, array_like=True, tag="leave"):
    """From rank 0 to each of the others: no later plan moves KV, let go of the memory. Not
    answered.
    """


class FreeKv(msgspec.Struct, frozen=True, array_like=True, tag="free_kv"):
    """From rank 0 to each of the others: ``KvMemory.free_kv``. Answered by ``KvDone``."""


class AllocateKv(msgspec.Struct, frozen=True, array_like=True, tag="allocate_kv"):
    """From rank 0 to each of the others: ``KvMemory.allocate_kv``. Answered by ``KvDone``."""


class KvDone(msgspec.Struct, frozen=True, array_like=True, tag="kv_done"):
    """To rank 0."""

    failure: str | None = None
    """Why this rank has no memory for its part of the pool."""


class Transferred(msgspec.Struct, frozen=True, array_like=True, tag="transferred"):
    """To rank 0: the stores of this rank's shards are done, and so are its loads."""

    step_id: int
    failed_loads: tuple[int, ...]
    """Indices into the plan's ``loads``."""


class Joined(msgspec.Struct, frozen=True, array_like=True, tag="joined"):
    """To rank 0."""

    reason_against: str | None = None
    """Why this rank can't use the arena."""


RankCommand = FromGateway | GatewayGone | Record | StoreKept | HandOver | Stay | Sleep | Wake
RankEvent = Ready | Loaded | Failed | StepReport
FromLeader = PlanFrame | JoinArena | LeaveArena | FreeKv | AllocateKv
FromFollower = Transferred | Joined | KvDone
