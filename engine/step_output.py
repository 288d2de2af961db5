"""What one step of the engine says to whoever drives it. Must not know processes or gateways."""

from dataclasses import dataclass, field

from engine.messages import CacheEvents, LoadView, TokenDelta
from engine.observations import EngineStats, RequestNote, StepRecord


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What one step has to say to the outside."""

    deltas: list[TokenDelta]
    """Refusals, aborts and timeouts since the last step first, then the tokens of this one."""
    events: CacheEvents | None
    load: LoadView
    stats: EngineStats = field(default_factory=EngineStats)
    record: StepRecord | None = None
    """None if nothing was computed."""
    notes: list[RequestNote] = field(default_factory=list)
