"""A way to run a model on some hardware, whether it was measured here or published: what
simulations and searches start from. Must not know files or command lines.
"""

from dataclasses import dataclass

from engine.config import EngineConfig
from engine.performance_profile import EngineProfile, PerformanceProfile
from simulator.errors import FleetSpecError
from simulator.performance import PerformanceModel
from simulator.profiled_model import model_of_profile
from simulator.replica_spec import DEFAULT_CONFIG, ReplicaSpec


@dataclass(frozen=True, slots=True)
class ReplicaKind:
    """One model in one precision on so many devices."""

    label: str
    """Tells it apart from others that are compared."""
    model: PerformanceModel
    num_kv_tokens: int
    """That its memory holds."""
    kv_token_bytes: int
    max_num_seqs: int
    """The most decodes that are known of."""
    max_num_batched_tokens: int
    """The largest step that is known of."""
    num_devices: int = 1
    max_model_len: int | None = None
    max_kv_bytes: int | None = None
    """What the devices have room for; None where that is not known."""
    settings: tuple[tuple[str, str | int], ...] = ()
    """Of an engine that runs so: keys and values of its configuration."""

    def spec(self, config: EngineConfig | None = None) -> ReplicaSpec:
        """Of a simulated replica; by default with as large steps as are known of."""
        if config is None:
            sizes = {
                "max_num_seqs": self.max_num_seqs,
                "max_num_batched_tokens": self.max_num_batched_tokens,
                "max_model_len": self.max_model_len,
            }
            config = DEFAULT_CONFIG.model_copy(update=sizes)
        return ReplicaSpec(self.model, self.num_kv_tokens, config, num_devices=self.num_devices)


def kinds_of_profile(profile: PerformanceProfile) -> list[ReplicaKind]:
    """One for each engine that was measured."""
    return [_kind(engine) for engine in profile.engines]


def kind_of_profile(profile: PerformanceProfile, label: str | None) -> ReplicaKind:
    """The one called so, or the only one. Raises ``FleetSpecError``."""
    kinds = kinds_of_profile(profile)
    found = [kind for kind in kinds if label in (None, kind.label)]
    if len(found) == 1:
        return found[0]
    what = f"{len(kinds)} engines" if label is None else f"no engine {label!r}"
    labels = ", ".join(repr(kind.label) for kind in kinds)
    raise FleetSpecError(f"the profile has {what}: name one of {labels} with --engine")


def _kind(engine: EngineProfile) -> ReplicaKind:
    settings: dict[str, str | int] = {
        "dtype": engine.dtype,
        "quantization": engine.quantization,
        "tensor_parallel_size": engine.tensor_parallel_size,
    }
    if engine.num_threads:
        settings["num_threads"] = engine.num_threads
    return ReplicaKind(
        label=engine.label,
        model=model_of_profile(engine),
        num_kv_tokens=engine.kv_cache_bytes // engine.kv_token_bytes,
        kv_token_bytes=engine.kv_token_bytes,
        max_num_seqs=engine.max_num_seqs,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        num_devices=engine.tensor_parallel_size,
        max_model_len=engine.max_model_len,
        settings=tuple(settings.items()),
    )
