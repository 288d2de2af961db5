"""Metrics and records of a real fleet, through the proxy: two gateways, two paced engines."""

import http.client
import json
import re
import signal
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest

from tests.cluster.local import Local, Model, running
from tests.cluster.processes import GATEWAY, engine_of, listening_ports, replicas, wait_until

MODEL = "observed"
SERVE_PORTS = range(30000, 31001)
"""Where each gateway replica listens for the proxy."""
SAMPLE = re.compile(r"^(headwater:\w+)(\{.*\}) (\S+)$", re.MULTILINE)


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    model = Model(MODEL, num_replicas=2)
    with running([model], tmp_path_factory.mktemp("serve"), num_gateways=2) as local:
        yield local


def read(url: str, data: dict[str, Any] | None = None) -> str:
    """Over a connection of its own, so that either gateway may answer."""
    body = None if data is None else json.dumps(data).encode()
    request = urllib.request.Request(url, body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as response:
        text: str = response.read().decode()
    return text


@contextmanager
def first_gateway_busy(local: Local) -> Iterator[None]:
    """The proxy prefers the gateway with fewer open requests: others go to the second one now."""
    body = {"model": MODEL, "prompt": "Once", "max_tokens": 1000, "stream": True}
    connection = http.client.HTTPConnection("127.0.0.1", local.port, timeout=30)
    headers = {"content-type": "application/json"}
    connection.request("POST", "/v1/completions", json.dumps(body), headers)
    try:
        assert connection.getresponse().readline()
        yield
    finally:
        connection.close()


def ask(local: Local) -> str:
    body = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 4}
    answer_id: str = json.loads(read(f"{local.url}/v1/completions", body))["id"]
    return answer_id


def counters(page: str) -> dict[str, float]:
    kinds = dict(re.findall(r"^# TYPE (\S+) (\w+)$", page, re.MULTILINE))
    found = {}
    for name, labels, value in SAMPLE.findall(page):
        family = re.sub(r"_(bucket|count|sum)$", "", name)
        if "counter" in (kinds.get(name), kinds.get(family)) or kinds.get(family) == "histogram":
            found[name + labels] = float(value)
    return found


def up(page: str) -> list[tuple[str, str]]:
    """Role and state of every replica on the page."""
    pattern = r'^headwater:scrape_up\{replica="[^"]+",role="(\w+)"\} (\d)$'
    return sorted(re.findall(pattern, page, re.MULTILINE))


ALL_UP = [("engine", "1"), ("engine", "1"), ("gateway", "1"), ("gateway", "1")]


def test_every_page_has_all_replicas_and_no_counter_falls(local: Local) -> None:
    def is_whole() -> bool:
        return up(read(f"{local.url}/metrics")) == ALL_UP

    with first_gateway_busy(local):
        wait_until(is_whole, timeout_s=10, what="all four replicas on a gateway's page")
    wait_until(is_whole, timeout_s=10, what="all four replicas on the other gateway's page")
    last: dict[str, float] = {}
    for position in range(10):
        with first_gateway_busy(local) if position % 2 else nullcontext():
            ask(local)
            page = read(f"{local.url}/metrics")
        assert up(page) == ALL_UP
        now = counters(page)
        assert last.keys() <= now.keys()
        assert all(now[series] >= value for series, value in last.items())
        last = now
    answered = [
        value
        for series, value in last.items()
        if "http_requests_total" in series and 'route="/v1/completions",status="200"' in series
    ]
    assert sum(answered) >= 10
    assert len(answered) == 2, "the proxy sent everything to one gateway"


def test_every_target_serves_its_own_page(local: Local) -> None:
    groups = json.loads(read(f"{local.url}/metrics/targets"))
    assert sorted(group["labels"]["role"] for group in groups) == [
        *("engine", "engine", "gateway", "gateway")
    ]
    for group in groups:
        (address,) = group["targets"]
        page = read(f"http://{address}/metrics")
        assert "headwater:" in page
        assert "role=" not in page


def check_course(local: Local, request_id: str) -> None:
    course = json.loads(read(f"{local.url}/debug/requests/{request_id}"))
    (part,) = course["engines"]
    kinds = [event["kind"] for event in part["events"]]
    assert kinds.index("submitted") < kinds.index("first_token") < kinds.index("last_token")
    steps = json.loads(read(f"{local.url}/debug/steps?model={MODEL}&engine={part['engine']}"))
    assert sum(step["num_finished"] for step in steps["data"]) >= 1
    assert {step["engine"] for step in steps["data"]} == {part["engine"]}


def test_a_request_and_its_steps_are_known_at_whichever_gateway(local: Local) -> None:
    request_id = ask(local)
    for is_busy in (False, True):
        with first_gateway_busy(local) if is_busy else nullcontext():
            check_course(local, request_id)


def test_a_stopped_engine_delays_nothing_and_is_shown_as_down(local: Local) -> None:
    stopped = replicas(local.pid, engine_of(MODEL))[0]
    stopped.send_signal(signal.SIGSTOP)
    try:
        for _ in range(3):
            started_s = time.monotonic()
            page = read(f"{local.url}/metrics")
            assert time.monotonic() - started_s < 1.5
            assert up(page) == [("engine", "0"), *ALL_UP[1:]]
        started_s = time.monotonic()
        steps = json.loads(read(f"{local.url}/debug/steps?model={MODEL}"))
        assert time.monotonic() - started_s < 1.5
        assert len(steps["unanswered"]) == 1
    finally:
        stopped.send_signal(signal.SIGCONT)


def test_a_stopped_gateway_delays_the_page_of_the_other_by_a_second_at_most(local: Local) -> None:
    stopped, other = replicas(local.pid, GATEWAY)
    (port,) = [port for port in listening_ports(other) if port in SERVE_PORTS]
    url = f"http://127.0.0.1:{port}/metrics"  # the proxy would try the stopped one, too
    wait_until(lambda: up(read(url)) == ALL_UP, timeout_s=5, what="a whole page")
    stopped.send_signal(signal.SIGSTOP)
    try:
        for pause_s in (0.0, 2.1):  # the second time, the list of gateways is old
            time.sleep(pause_s)
            started_s = time.monotonic()
            page = read(url)
            assert time.monotonic() - started_s < 1.5
            assert up(page) == sorted([("gateway", "0"), *ALL_UP[:3]])
    finally:
        stopped.send_signal(signal.SIGCONT)
