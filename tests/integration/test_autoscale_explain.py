"""`headwater autoscale explain`: asks the gateway where the autoscaler is, and says one line for
whatever goes wrong."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import msgspec
import pytest

from autoscaler.plan import Cause, ModelPlan
from cache_tiers.rung import Rung
from cache_tiers.weights.messages import WeightsState
from deployments.cli import main
from deployments.plan_messages import DECISIONS_PATH, WEIGHTS_PATH, Decided, NodeStanding

PLAN = ModelPlan("m", 4, 1, 0, 0, {}, None, (Cause.FORECAST,), "load rises", num_wanted=3.6)


class Cluster(HTTPServer):
    """Gateway and autoscaler on one port."""

    role = "autoscaler"
    key: str | None = None
    asked: tuple[str, ...] = ()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Answer(BaseHTTPRequestHandler):
    server: Cluster

    def do_GET(self) -> None:
        self.server.asked += (self.path,)
        if self.path == "/metrics/targets":
            if self.server.key and self.headers["authorization"] != f"Bearer {self.server.key}":
                return self.send_error(401)
            labels = {"replica": "gateway/x", "role": self.server.role}
            targets = [f"127.0.0.1:{self.server.server_port}"]
            body = json.dumps([{"targets": targets, "labels": labels}]).encode()
        elif self.path == WEIGHTS_PATH:
            state = WeightsState("m", Rung.STAGED, Rung.STAGED)
            body = msgspec.json.encode({"m": [NodeStanding("n1", state, 2)]})
        else:
            body = msgspec.json.encode({"m": [Decided(0.0, False, PLAN)]})
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)
        return None

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  its name
        """The test's output stays clean."""


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def explain(cluster: Cluster, *options: str) -> int:
    return main(["autoscale", "explain", "--url", cluster.url, *options])


def test_decisions_come_from_the_autoscaler_that_the_gateway_knows(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert explain(cluster, "--last", "3", "--model", "m") == 0
    text = capsys.readouterr().out
    assert "4 serving + 1 parked  [forecast]  load rises" in text
    assert "node n1: staged, room for 2 more" in text
    assert cluster.asked == ("/metrics/targets", f"{DECISIONS_PATH}?last=3", WEIGHTS_PATH)


def test_a_key_is_sent_where_one_is_needed(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.key = "secret"
    assert explain(cluster) == 1
    assert "answers 401: give an admin key by --key" in capsys.readouterr().err
    assert explain(cluster, "--key", "secret") == 0


def test_a_cluster_without_an_autoscaler_is_said_so(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.role = "gateway"
    assert explain(cluster) == 1
    assert "has no autoscaler: set autoscaler: true in its args" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "x"], "no plan has a model 'x'; there is: m"),
        (["--last", "0"], "--last is 0: take 1 or more"),
        (["--url", "http://127.0.0.1:9"], "http://127.0.0.1:9/metrics/targets does not answer"),
        (["--url", "file:///etc"], "is no address: begin with http:// or https://"),
    ],
)
def test_wrong_input_is_one_line(
    options: list[str], message: str, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert explain(cluster, *options) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
