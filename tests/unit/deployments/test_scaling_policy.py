"""Serve's policy: follows the plan, stays where it is when anything is wrong, ends by itself."""

import gc
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from ray import cloudpickle

from deployments import scaling_policy
from deployments.scaling_policy import MAX_PLAN_AGE_S, Exchange, ScalingPolicy


@dataclass
class Context:
    """What Serve hands over, as far as the policy looks at it."""

    target_num_replicas: int = 3
    current_num_replicas: int = 2
    capacity_adjusted_min_replicas: int = 1
    capacity_adjusted_max_replicas: int = 9
    app_name: str = "m"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling_policy, "POLL_PERIOD_S", 0.005)


def policy_of(exchange: Callable[..., Any], **kwargs: object) -> ScalingPolicy:
    class Policy(ScalingPolicy):
        @staticmethod
        def connect() -> Exchange:
            return exchange

    return Policy(**kwargs)


def eventually(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.002)


def test_serve_gets_the_plans_target_and_the_holder_what_serve_knows() -> None:
    said: list[Any] = []
    may_answer = threading.Event()

    def exchange(*question: Any) -> tuple[int | None, float]:
        said.append(question)
        may_answer.wait(5)
        return 7, 0.0

    policy = policy_of(exchange, bundle={"CPU": 1.0}, weights={"source": "s"})
    assert policy(Context()) == (3, {})
    may_answer.set()
    eventually(lambda: policy(Context()) == (7, {}))
    assert said[0] == ("m", (3, 2, 1, 9), {"CPU": 1.0}, {"source": "s"})


def test_from_zero_the_plan_is_followed_too() -> None:
    policy = policy_of(lambda *_: (2, 0.0))
    eventually(lambda: policy(Context(target_num_replicas=0, current_num_replicas=0))[0] == 2)


@pytest.mark.parametrize(
    "answer", [(7, MAX_PLAN_AGE_S + 1), (None, 0.0)], ids=["an old plan", "a model that is held"]
)
def test_the_size_stays(answer: tuple[int | None, float]) -> None:
    heard = threading.Event()

    def exchange(*_: Any) -> tuple[int | None, float]:
        heard.set()
        return answer

    policy = policy_of(exchange)
    policy(Context())
    assert heard.wait(5)
    time.sleep(0.02)
    assert policy(Context()) == (3, {})


def test_a_plan_that_comes_no_more_is_followed_until_it_is_old() -> None:
    answers: list[tuple[int | None, float]] = [(7, 0.0)]
    has_failed = threading.Event()
    now_s = 100.0

    class Policy(ScalingPolicy):
        @staticmethod
        def clock() -> float:
            return now_s

        @staticmethod
        def connect() -> Exchange:
            return exchange

    def exchange(*_: Any) -> tuple[int | None, float]:
        if not answers:
            has_failed.set()
            raise RuntimeError("the holder died")
        return answers[-1]

    policy = Policy()
    eventually(lambda: policy(Context())[0] == 7)
    answers.clear()
    assert has_failed.wait(5)
    now_s += MAX_PLAN_AGE_S
    assert policy(Context())[0] == 7
    now_s += 0.1
    assert policy(Context())[0] == 3
    answers.append((8, 0.0))
    eventually(lambda: policy(Context())[0] == 8)


@pytest.mark.parametrize(
    "kwargs", [{"bundle": 3}, {"bundle": None, "app": "m"}, {"model": ["x"]}], ids=str
)
def test_wrong_arguments_from_a_file_break_nothing(kwargs: dict[str, object]) -> None:
    policy = policy_of(lambda *_: (7, 0.0), **kwargs)
    eventually(lambda: policy(Context())[0] == 7)


def test_a_context_of_another_shape_keeps_the_size() -> None:
    class Bare:
        target_num_replicas = 5

    policy = policy_of(lambda *_: (7, 0.0))
    assert policy(Bare()) == (5, {})
    assert policy(Bare()) == (5, {})


def test_a_broken_answer_keeps_the_size() -> None:
    asked = threading.Event()

    def exchange(*_: Any) -> Any:
        asked.set()
        return "nonsense"

    policy = policy_of(exchange)
    policy(Context())
    assert asked.wait(5)
    assert policy(Context()) == (3, {})


def test_the_thread_ends_with_the_policy() -> None:
    policy = policy_of(lambda *_: (7, 0.0))
    policy(Context(app_name="ends"))
    (thread,) = [t for t in threading.enumerate() if t.name == "autoscaling ends"]
    assert thread.daemon
    del policy
    gc.collect()
    thread.join(5)
    assert not thread.is_alive()


def test_it_runs_where_this_package_is_not_installed() -> None:
    # As Serve pickles it for the controller.
    cloudpickle.register_pickle_by_value(scaling_policy)
    try:
        pickled = cloudpickle.dumps(ScalingPolicy)
    finally:
        cloudpickle.unregister_pickle_by_value(scaling_policy)
    program = (
        "import pickle, sys, types\n"
        f"policy = pickle.loads({pickled!r})(bundle={{}})\n"
        "context = types.SimpleNamespace(target_num_replicas=4, current_num_replicas=4, "
        "capacity_adjusted_min_replicas=0, capacity_adjusted_max_replicas=9, app_name='m')\n"
        "print(policy(context), [m for m in ('deployments', 'app') if m in sys.modules])\n"
    )
    assert pickle.loads(pickled)
    command = [sys.executable, "-P", "-c", program]
    done = subprocess.run(command, cwd="/", capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == "(4, {}) []\n"
