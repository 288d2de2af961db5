"""The autoscaler on a real Ray: it grows with the load, and nobody's death moves a size."""

import re
import time
from collections.abc import Iterator
from typing import Any

import httpx
import psutil
import pytest

from deployments.cli import main
from tests.cluster.local import Local, Model, running
from tests.cluster.processes import GATEWAY, engine_of, replicas, wait_until
from tests.cluster.streams import Stream, streams

MODEL = Model("scaled", max_replicas=3, max_num_seqs=4, hand_over_after_s=1.0)
COLD = Model("cold", max_replicas=1, min_replicas=0)
FIXED = {"start_s": 8, "max_parked": 0, "capacity": {"requests_per_s": 2}}
AUTOSCALER = "ServeReplica:gateway:Autoscaler"
HOLDER = "ray::PlanHolderActor"
SERIES = re.compile(r"^headwater:autoscaler_(\w+)\{(.*)\} (\S+)$", re.MULTILINE)
RUNNING = re.compile(r"^headwater:num_requests_running\{.*\} (\S+)$", re.MULTILINE)
LONG = 1500
"""Tokens that take half a minute."""
HOLD_S = 13.0
"""Longer than a plan is believed."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    folder = tmp_path_factory.mktemp("serve")
    with running([MODEL, COLD], folder, num_gateways=1, autoscaler=config()) as local:
        wait_until(
            lambda: series(local, "demand_known") == 1, timeout_s=30, what="the autoscaler sees"
        )
        yield local


def config(**scaling: Any) -> dict[str, Any]:
    """``scaling``: of the model that isn't cold."""
    return {
        "models": [{**FIXED, "name": MODEL.name, **scaling}, {**FIXED, "name": COLD.name}],
    }


def series(local: Local, name: str, label: str = "") -> float | None:
    """Of the model that isn't cold; None if it isn't on the fleet's page, or not once."""
    page = httpx.get(f"{local.url}/metrics", timeout=10).text
    found = [
        value
        for series, labels, value in SERIES.findall(page)
        if series == name and label in labels and f'model_name="{COLD.name}"' not in labels
    ]
    return float(found[0]) if len(found) == 1 else None


def num_engines(local: Local) -> int:
    return len(replicas(local.pid, engine_of(MODEL.name)))


def change(local: Local, **scaling: Any) -> None:
    local.deploy([MODEL, COLD], num_gateways=1, autoscaler=config(**scaling))


def resize(local: Local, number: int) -> None:
    """By an operator's word, until it is as large."""
    change(local, num_replicas=number)
    wait_until(lambda: num_engines(local) == number, timeout_s=45, what=f"{number} replicas")


def busy_pair(local: Local) -> list[Stream]:
    """Long answers on each of two replicas."""
    resize(local, 2)
    wait_until(
        lambda: series(local, "replicas", 'rung="serving"') == 2, timeout_s=30, what="both serve"
    )
    answers = streams(local.url, MODEL.name, count=4, num_tokens=LONG)
    wait_until(lambda: num_busy(local) == 2, timeout_s=10, what="both have answers")
    return answers


def num_busy(local: Local) -> int:
    page = httpx.get(f"{local.url}/metrics", timeout=10).text
    return sum(float(value) > 0 for value in RUNNING.findall(page))


def assert_whole(answers: list[Stream]) -> None:
    for answer in answers:
        answer.wait(60)
        assert answer.error is None
        assert answer.num_tokens == LONG


def one(local: Local, title: str) -> psutil.Process:
    (process,) = replicas(local.pid, title)
    return process


def assert_size_holds(local: Local, number: int) -> None:
    deadline_s = time.monotonic() + HOLD_S
    while time.monotonic() < deadline_s:
        assert num_engines(local) == number
        time.sleep(0.2)


def test_load_brings_replicas_before_the_gateway_says_no(local: Local) -> None:
    assert num_engines(local) == 1
    answers: list[Stream] = []
    deadline_s = time.monotonic() + 40
    while num_engines(local) < 3:
        assert time.monotonic() < deadline_s
        answers.append(Stream(local.url, MODEL.name, num_tokens=10, prompt=f"{len(answers)}?"))
        time.sleep(0.2)
    for answer in answers:
        answer.wait(30)
        assert answer.error is None
        assert answer.num_tokens == 10


def test_a_request_starts_the_first_replica_and_waits_for_it(local: Local) -> None:
    assert replicas(local.pid, engine_of(COLD.name)) == []
    answer = Stream(local.url, COLD.name, num_tokens=5)
    answer.wait(45)
    assert answer.error is None
    assert answer.num_tokens == 5
    assert len(replicas(local.pid, engine_of(COLD.name))) == 1


def test_an_operators_word_counts_at_once_and_restarts_nothing(local: Local) -> None:
    before = [one(local, GATEWAY).pid, one(local, AUTOSCALER).pid]
    resize(local, 2)
    resize(local, 1)
    assert [one(local, GATEWAY).pid, one(local, AUTOSCALER).pid] == before


def test_a_wrong_configuration_leaves_the_last_one_in_force(local: Local) -> None:
    resize(local, 2)
    before = one(local, AUTOSCALER).pid
    change(local, min_replicas=3, max_replicas=2)
    wait_until(lambda: series(local, "config_refused") == 1, timeout_s=20, what="it is refused")
    assert_size_holds(local, 2)
    assert one(local, AUTOSCALER).pid == before
    resize(local, 1)
    assert series(local, "config_refused") == 0


def test_the_size_holds_while_the_autoscaler_is_away_and_it_comes_back(local: Local) -> None:
    resize(local, 2)
    first = one(local, AUTOSCALER)
    first.kill()
    first.wait(10)
    assert_size_holds(local, 2)
    wait_until(
        lambda: any(each.pid != first.pid for each in replicas(local.pid, AUTOSCALER)),
        timeout_s=30,
        what="another autoscaler",
    )
    resize(local, 1)


def test_the_size_holds_without_the_plan_and_its_holder_is_made_again(local: Local) -> None:
    resize(local, 2)
    first = one(local, HOLDER)
    first.kill()
    assert_size_holds(local, 2)
    assert one(local, HOLDER).pid != first.pid
    resize(local, 1)


def test_what_was_decided_is_explained(local: Local, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["autoscale", "explain", "--url", local.url]) == 0
    text = capsys.readouterr().out
    assert "1 serving  [override" in text


def test_nothing_grows_in_a_dry_run(local: Local) -> None:
    resize(local, 1)
    change(local, num_replicas=3, dry_run=True)
    wait_until(
        lambda: series(local, "wanted_replicas", 'rung="serving"') == 3,
        timeout_s=20,
        what="three are planned",
    )
    assert_size_holds(local, 1)


def test_a_replica_that_leaves_hands_its_answers_over(local: Local) -> None:
    answers = busy_pair(local)
    resize(local, 1)
    # It would have been there for as long as its answers.
    assert all(answer.is_alive() for answer in answers)
    assert_whole(answers)


def test_answers_end_where_they_are_when_the_application_is_deleted(local: Local) -> None:
    answers = busy_pair(local)
    local.deploy([MODEL, COLD], num_gateways=1, autoscaler=config(), deleted=(MODEL.name,))
    assert_whole(answers)
    wait_until(lambda: num_engines(local) == 0, timeout_s=20, what="all are gone")
