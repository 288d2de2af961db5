"""The agent against a metadata service on loopback: what it drains for, how often, and what it
survives.
"""

import sys
import threading
from collections.abc import Iterator

import pytest

from benchmarks.aws_loop_metadata import Metadata, metadata_server
from deployments.aws.instance_metadata import InstanceMetadata, MetadataAway
from deployments.aws.node_agent import DrainFailed, NodeAgent, run_drain
from deployments.aws.notices import (
    REBALANCE_PATH,
    SCHEDULED_EVENTS_PATH,
    SPOT_ACTION_PATH,
    Notice,
)
from deployments.local_environment import free_port

AT_S = 1_505_722_920.0
SPOT = '{"action": "terminate", "time": "2017-09-18T08:22:00Z"}'
SOONER = '{"action": "terminate", "time": "2017-09-18T08:21:00Z"}'
REBOOT = '[{"NotBefore": "18 Sep 2017 08:22:00 GMT", "Code": "system-reboot", "State": "active"}]'

pytestmark = pytest.mark.integration


@pytest.fixture
def service() -> Iterator[Metadata]:
    with metadata_server() as metadata:
        yield metadata


class Drains:
    """What was asked of Ray, and a Ray that may be away."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, float]] = []
        self.is_away = False
        self.now_s = AT_S - 120

    def __call__(self, notice: Notice, left_s: float) -> None:
        if self.is_away:
            raise DrainFailed("no GCS")
        self.calls.append((notice.action, left_s))


@pytest.fixture
def drains() -> Drains:
    return Drains()


def agent_of(service: Metadata, drains: Drains) -> NodeAgent:
    return NodeAgent(InstanceMetadata(service.url), drains, clock=lambda: drains.now_s)


def test_without_a_notice_nothing_is_drained(service: Metadata, drains: Drains) -> None:
    agent = agent_of(service, drains)
    for _ in range(3):
        agent.check()
    assert drains.calls == []
    assert service.num_tokens == 1


def test_a_notice_that_stays_drains_once(service: Metadata, drains: Drains) -> None:
    agent = agent_of(service, drains)
    service.values[SPOT_ACTION_PATH] = SPOT
    for _ in range(3):
        agent.check()
        drains.now_s += 2
    assert drains.calls == [("terminate", 120.0)]


def test_an_end_that_comes_sooner_is_told_again(service: Metadata, drains: Drains) -> None:
    agent = agent_of(service, drains)
    for text in (SPOT, SOONER, SPOT):
        service.values[SPOT_ACTION_PATH] = text
        agent.check()
    assert drains.calls == [("terminate", 120.0), ("terminate", 60.0)]


def test_an_end_that_has_passed_leaves_a_second(service: Metadata, drains: Drains) -> None:
    service.values[SPOT_ACTION_PATH] = SPOT
    drains.now_s = AT_S + 5
    agent_of(service, drains).check()
    assert drains.calls == [("terminate", 1.0)]


def test_a_scheduled_event_waits_for_its_time(service: Metadata, drains: Drains) -> None:
    agent = agent_of(service, drains)
    service.values[SCHEDULED_EVENTS_PATH] = REBOOT
    drains.now_s = AT_S - 86_400
    agent.check()
    assert drains.calls == []
    drains.now_s = AT_S - 600
    agent.check()
    assert drains.calls == [("system-reboot", 600.0)]


def test_a_recommendation_is_logged_once_and_drains_nothing(
    service: Metadata, drains: Drains, caplog: pytest.LogCaptureFixture
) -> None:
    agent = agent_of(service, drains)
    service.values[REBALANCE_PATH] = '{"noticeTime": "2017-09-18T08:00:00Z"}'
    for _ in range(3):
        agent.check()
    assert drains.calls == []
    assert sum("recommends" in record.message for record in caplog.records) == 1


def test_a_token_that_has_expired_is_renewed(service: Metadata, drains: Drains) -> None:
    agent = agent_of(service, drains)
    agent.check()
    service.valid_tokens.clear()
    service.values[SPOT_ACTION_PATH] = SPOT
    agent.check()
    assert drains.calls == [("terminate", 120.0)]
    assert service.num_tokens == 2


@pytest.mark.parametrize("text", ["", "{", "<html>busy</html>", '{"action": 7}'])
def test_words_that_are_not_understood_hide_no_other_notice(
    text: str, service: Metadata, drains: Drains
) -> None:
    agent = agent_of(service, drains)
    service.values = {SPOT_ACTION_PATH: text, REBALANCE_PATH: text, SCHEDULED_EVENTS_PATH: REBOOT}
    agent.check()
    assert drains.calls == [("system-reboot", 120.0)]
    service.values[SPOT_ACTION_PATH] = SOONER
    agent.check()
    assert drains.calls[1:] == [("terminate", 60.0)]


def test_one_source_that_fails_hides_no_other(service: Metadata, drains: Drains) -> None:
    service.statuses[SPOT_ACTION_PATH] = 500
    service.values[SCHEDULED_EVENTS_PATH] = REBOOT
    agent_of(service, drains).check()
    assert drains.calls == [("system-reboot", 120.0)]


def test_a_drain_that_fails_is_tried_again_at_growing_distances(
    service: Metadata, drains: Drains
) -> None:
    agent = agent_of(service, drains)
    service.values[SPOT_ACTION_PATH] = SPOT
    drains.is_away = True
    agent.check()
    drains.is_away = False
    drains.now_s += 1.9
    agent.check()
    assert drains.calls == []
    drains.now_s += 0.2
    agent.check()
    agent.check()
    [(action, left_s)] = drains.calls
    assert action == "terminate"
    assert left_s == pytest.approx(117.9)


def test_a_service_that_was_away_is_asked_again(drains: Drains) -> None:
    port = free_port(0)
    agent = NodeAgent(
        InstanceMetadata(f"http://127.0.0.1:{port}"), drains, clock=lambda: drains.now_s
    )
    agent.check()
    assert drains.calls == []
    with metadata_server(port) as service:
        service.values[SPOT_ACTION_PATH] = SPOT
        agent.check()
    assert drains.calls == [("terminate", 120.0)]


def test_it_goes_on_whatever_fails_until_it_is_stopped(service: Metadata) -> None:
    called, stop = threading.Semaphore(0), threading.Event()

    def breaks(notice: Notice, left_s: float) -> None:
        called.release()
        raise RuntimeError(notice.kind)

    service.values[SPOT_ACTION_PATH] = SPOT
    agent = NodeAgent(InstanceMetadata(service.url), breaks)
    thread = threading.Thread(target=agent.run, args=(stop,))
    thread.start()
    try:
        assert called.acquire(timeout=10)
        assert called.acquire(timeout=10)
    finally:
        stop.set()
        thread.join(10)
    assert not thread.is_alive()


def test_a_service_without_tokens_is_away(service: Metadata) -> None:
    service.token_status = 403
    with pytest.raises(MetadataAway, match="no token: status 403"):
        InstanceMetadata(service.url).read(SPOT_ACTION_PATH)


@pytest.mark.parametrize("url", ["", "169.254.169.254", "https://127.0.0.1", "file:///etc"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="no address of a metadata service"):
        InstanceMetadata(url)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("import sys; sys.exit('first\\nno such node')", "no such node"),
        ("raise SystemExit(3)", "exit status 3"),
        ("import time; time.sleep(60)", "timed out"),
    ],
)
def test_a_drain_that_did_not_work_says_why(script: str, reason: str) -> None:
    with pytest.raises(DrainFailed, match=reason):
        run_drain([sys.executable, "-c", script], timeout_s=2.0)


def test_a_drain_that_worked_says_nothing() -> None:
    run_drain([sys.executable, "-c", "print('draining')"])
