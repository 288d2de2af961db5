"""Serve's autoscaling policy of models that are autoscaled: what the plan says, from memory.

Serve's controller calls it ten times a second, for all applications on one thread, so that it must
take no time and never raise; a thread of its own tells the plan holder what Serve knows and hears
the target. Whatever is missing, wrong or old, the size stays as it is.

Serve pickles the class together with this module, for a controller and a command line that need not
have this package: only the standard library is imported here, and Ray where it runs.
"""

import logging
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

logger = logging.getLogger("ray.serve")

HOLDER_NAME = "autoscaler-plan"
NAMESPACE = "headwater"

POLL_PERIOD_S = 1.0
ASK_TIMEOUT_S = 2.0
MAX_PLAN_AGE_S = 10.0
"""Of an older plan nobody knows whether it still fits."""

Question = tuple[str, tuple[int, int, int, int], object, object]
"""Model; target, running, least and most replicas; what one replica reserves; its weights."""
Exchange = Callable[[str, tuple[int, int, int, int], object, object], tuple[int | None, float]]
"""A `Question` -> the target, None to stay, and the age of the plan. May raise and block."""


class ScalingPolicy:
    """One per deployment; Serve makes it anew when the deployment changes, and closes none."""

    clock = staticmethod(time.monotonic)

    def __init__(self, bundle: object = None, weights: object = None, **unknown: object) -> None:
        """``bundle``: resources that one replica reserves, by their name; ``weights``: a
        `deployments.plan_messages.ModelWeights` as a dict, for nodes to hold. Anything else that a
        file may say is named in the log: an error here would end the controller's work on all
        models."""
        if unknown:
            logger.error("the autoscaling policy takes no %s: remove it", sorted(unknown))
        self._bundle = bundle
        self._weights = weights
        self._model: str | None = None
        self._serve = (0, 0, 0, 0)
        self._target: int | None = None
        self._made_s = 0.0
        """When its plan was made, on this process's clock."""
        self._is_broken = False

    def __call__(self, ctx: Any) -> tuple[int, dict[str, Any]]:
        """Serve's target and no state."""
        try:
            return self._decide(ctx), {}
        except Exception:
            if not self._is_broken:
                logger.exception("the size stays as it is")
            self._is_broken = True
            return ctx.target_num_replicas, {}

    @staticmethod
    def connect() -> Exchange:
        """Finds the plan holder; may raise and block."""
        import ray

        holder = ray.get_actor(HOLDER_NAME, namespace=NAMESPACE)

        def exchange(
            model: str, serve: tuple[int, int, int, int], bundle: object, weights: object
        ) -> tuple[int | None, float]:
            answer = holder.exchange.remote(model, serve, bundle, weights)
            target, age_s = ray.get(answer, timeout=ASK_TIMEOUT_S)
            return target, age_s

        return exchange

    def question(self) -> Question:
        """What the holder is told; the thread's."""
        assert self._model is not None  # the thread starts later
        return self._model, self._serve, self._bundle, self._weights

    def hear(self, target: int | None, age_s: float) -> None:
        """The holder's answer; from the thread."""
        self._made_s = self.clock() - age_s
        self._target = target

    def _decide(self, ctx: Any) -> int:
        current = int(ctx.target_num_replicas)
        self._serve = (
            current,
            int(ctx.current_num_replicas),
            int(ctx.capacity_adjusted_min_replicas),
            int(ctx.capacity_adjusted_max_replicas),
        )
        if self._model is None:
            self._model = str(ctx.app_name)
            # Holds no reference to the policy, which thereby ends it.
            threading.Thread(
                target=_follow,
                args=(weakref.ref(self),),
                name=f"autoscaling {self._model}",
                daemon=True,
            ).start()
        target = self._target
        is_old = self.clock() - self._made_s > MAX_PLAN_AGE_S
        return current if target is None or is_old else target


def _follow(find_policy: "Callable[[], ScalingPolicy | None]") -> None:
    """The thread: asks for as long as the policy is in use."""
    exchange: Exchange | None = None
    was_silent = False
    while (policy := find_policy()) is not None:
        try:
            exchange = exchange or policy.connect()
            policy.hear(*exchange(*policy.question()))
        except Exception as error:
            if not was_silent:
                model = policy.question()[0]
                logger.warning("%s keeps its size: the autoscaler is silent: %r", model, error)
            exchange, was_silent = None, True
        else:
            was_silent = False
        del policy
        time.sleep(POLL_PERIOD_S)
