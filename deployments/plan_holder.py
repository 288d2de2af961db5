"""Holds the autoscaler's plan for Serve's controller, and what the controller says for the
autoscaler; remembers which decisions were different from the one before.

A named actor apart from the autoscaler, so that neither waits for the other's start, and so that
what was decided can be explained after either was lost. Must not know how plans are made.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import ray

from autoscaler.plan import Plan
from deployments.plan_messages import Decided, ModelWeights, Recalled, ServeReport
from deployments.scaling_policy import HOLDER_NAME, NAMESPACE

logger = logging.getLogger(__name__)

NUM_REMEMBERED = 500
"""Decisions per model."""
MAX_IDLE_S = 600.0
"""Without a plan for so long, nobody plans any more."""
_MIN_SLEEP_S = 1.0


class PlanHolder:
    """Plain state; any thread of one event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._epoch = 0
        self._published_s = clock()
        self._has_plan = False
        self._targets: dict[str, int] = {}
        self._latest: dict[str, Decided] = {}
        self._remembered: dict[str, deque[bytes]] = {}
        self._serve: dict[str, tuple[float, ServeReport]] = {}
        self._node_times_s: tuple[float, ...] = ()

    @property
    def idle_s(self) -> float:
        return self._clock() - self._published_s

    def recall(self) -> bytes:
        """A `Recalled`."""
        leads = {model: latest.plan.leads for model, latest in self._latest.items()}
        return msgspec.msgpack.encode(Recalled(self._epoch, leads, self._node_times_s))

    def publish(self, encoded: bytes) -> bytes:
        """Take over a `Plan`; msgpack of what Serve said last, by model. Raises `RuntimeError` if
        an autoscaler that started later has sent one.
        """
        plan = msgspec.msgpack.decode(encoded, type=Plan)
        if plan.epoch < self._epoch:
            raise RuntimeError(
                "an autoscaler that started later plans: leave one gateway with autoscaler: true"
            )
        self._epoch, self._has_plan = plan.epoch, True
        self._published_s = self._clock()
        self._targets = targets_of(plan)
        self._node_times_s = plan.node_times_s
        self._remember(plan)
        now_s = self._clock()
        reports = {
            model: msgspec.structs.replace(report, age_s=now_s - heard_s)
            for model, (heard_s, report) in self._serve.items()
        }
        return msgspec.msgpack.encode(reports)

    def exchange(
        self, model: str, serve: Sequence[int], bundle: object, weights: object = None
    ) -> tuple[int | None, float]:
        """What Serve's policy says of a model, against its target and the plan's age."""
        target, running, least, most = serve
        report = ServeReport(
            0.0, target, running, least, most, _checked(bundle), _checked_weights(weights)
        )
        self._serve[model] = (self._clock(), report)
        if not self._has_plan:
            raise LookupError("there is no plan yet")
        return self._targets.get(model), self.idle_s

    def explain(self, last: int) -> bytes:
        """Msgpack of the newest ``last`` decisions that changed something, by model, oldest first;
        the last one is the one in force. Raises `ValueError` for less than one.
        """
        if last < 1:
            raise ValueError(f"last is {last}: take 1 or more")
        found = {}
        for model, latest in self._latest.items():
            changes = [
                msgspec.msgpack.decode(item, type=Decided) for item in self._remembered[model]
            ]
            if changes[-1] != latest:
                changes.append(latest)
            found[model] = changes[-last:]
        return msgspec.msgpack.encode(found)

    def _remember(self, plan: Plan) -> None:
        for model_plan in plan.models:
            decided = Decided(plan.made_local_s, plan.is_dry_run, model_plan)
            before = self._latest.get(model_plan.model)
            if before is None or _gist(before) != _gist(decided):
                remembered = self._remembered.setdefault(
                    model_plan.model, deque(maxlen=NUM_REMEMBERED)
                )
                remembered.append(msgspec.msgpack.encode(decided))
            self._latest[model_plan.model] = decided


def targets_of(plan: Plan) -> dict[str, int]:
    """Serve's targets; models that are held keep theirs."""
    if plan.is_dry_run:
        return {}
    return {model.model: model.num_replicas for model in plan.models if not model.is_held}


def _gist(decided: Decided) -> tuple[Any, ...]:
    """What is worth remembering when it changes."""
    plan = decided.plan
    sizes = (plan.num_serving, plan.num_parked, plan.num_staged, plan.num_on_disk)
    return (*sizes, plan.causes[:1], plan.is_held, decided.is_dry_run)


def _checked(bundle: object) -> dict[str, float]:
    """Without what is no amount of a resource: it comes from a file."""
    if not isinstance(bundle, Mapping):
        return {}
    return {
        str(name): float(amount)
        for name, amount in bundle.items()
        if isinstance(amount, int | float) and amount > 0
    }


def _checked_weights(weights: object) -> ModelWeights | None:
    try:
        return None if weights is None else msgspec.convert(weights, ModelWeights)
    except msgspec.ValidationError:
        return None


class PlanHolderActor(PlanHolder):
    """Made by `ensure_plan_holder` only."""

    async def __init__(self) -> None:  # type: ignore[misc]  # Ray awaits it
        PlanHolder.__init__(self)
        self._watcher = asyncio.create_task(self._end_when_unused(), name="watch plans")

    async def _end_when_unused(self) -> None:
        idle_s = 0.0
        while idle_s < MAX_IDLE_S:
            await asyncio.sleep(max(_MIN_SLEEP_S, MAX_IDLE_S - idle_s))
            idle_s = self.idle_s
        logger.info("no plan came for %.0f s: the holder ends", self.idle_s)
        ray.kill(ray.get_runtime_context().current_actor)


def ensure_plan_holder() -> Any:
    """Its handle; made if there is none. Raises what Ray raises."""
    return (
        ray.remote(PlanHolderActor)
        .options(
            name=HOLDER_NAME,
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
        )
        .remote()
    )
