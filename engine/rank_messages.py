"""What the front and the processes of the ranks say to each other over their pipes.

Gateways' frames go down and step frames come up as they are, already encoded: the front forwards
bytes and only counts. A *source* is the number that the front gave to a gateway's connection.
"""

import msgspec

from cache_tiers.block_image import ImageLayout
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
    ``StepReport`` says when it has.
    """


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
    is_kept_stored: bool = False
    """What a ``StoreKept`` asked for is done, as far as there was room."""


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


class Transferred(msgspec.Struct, frozen=True, array_like=True, tag="transferred"):
    """To rank 0: the stores of this rank's shards are done, and so are its loads."""

    step_id: int
    failed_loads: tuple[int, ...]
    """Indices into the plan's ``loads``."""


class Joined(msgspec.Struct, frozen=True, array_like=True, tag="joined"):
    """To rank 0."""

    reason_against: str | None = None
    """Why this rank can't use the arena."""


RankCommand = FromGateway | GatewayGone | Record | StoreKept
RankEvent = Ready | Loaded | Failed | StepReport
FromLeader = PlanFrame | JoinArena | LeaveArena
FromFollower = Transferred | Joined
