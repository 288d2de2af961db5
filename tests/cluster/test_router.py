"""A router that stands alone beside a gateway: it learns of traffic that it never saw."""

import threading
from pathlib import Path

import httpx
import pytest
import yaml

from deployments.local_environment import free_port
from deployments.local_serve import LocalServe
from deployments.report import State
from tests.cluster.local import START_TIMEOUT_S, Model, serve_config
from tests.cluster.processes import wait_until

ALPHA = Model("alpha", num_replicas=2)
ROUTER = {
    "name": "router",
    "route_prefix": "/router",
    "import_path": "deployments.build:build_gateway",
    "args": {"router": "standalone"},
    "deployments": [{"name": "Gateway", "user_config": {"models": [{"name": "alpha"}]}}],
}
CHAT = {
    "model": "alpha",
    "messages": [{"role": "user", "content": "Where does this go? " * 60}],
    "max_tokens": 4,
}
GAUGE = "headwater:prefix_index_keys"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(START_TIMEOUT_S + 60)]


def test_it_names_the_replica_that_answered_the_same_prompt(tmp_path: Path) -> None:
    port = free_port(0)
    config = serve_config([ALPHA], port=port, num_gateways=1)
    config["applications"].append(ROUTER)
    path = tmp_path / "serve.yaml"
    path.write_text(yaml.safe_dump(config), "utf-8")
    url = f"http://127.0.0.1:{port}"

    with LocalServe(path, health_url=f"{url}/health") as serve:
        report = serve.wait_until_ready(threading.Event(), timeout_s=START_TIMEOUT_S)
        assert report.state is State.READY, report
        assert httpx.post(f"{url}/router/v1/chat/completions", json=CHAT).status_code == 404
        answer = httpx.post(f"{url}/v1/chat/completions", json=CHAT, timeout=30)
        assert answer.status_code == 200, answer.text
        course = httpx.get(f"{url}/debug/requests/{answer.json()['id']}", timeout=10).json()
        wait_until(
            lambda: _num_index_keys(url) > 0, timeout_s=10, what="the router hears of the cache"
        )
        routed = httpx.post(f"{url}/router/v1/route", json=CHAT, timeout=10).json()
        assert routed["engine_id"] == course["engines"][0]["engine"]
        assert routed["predicted_cached_tokens"] > 200
        host, _, engine_port = routed["address"].rpartition(":")
        assert host
        assert 0 < int(engine_port) < 65536
        (other,) = routed["alternatives"]
        assert other["engine_id"] != routed["engine_id"]
        assert other["predicted_cached_tokens"] == 0


def _num_index_keys(url: str) -> float:
    page = httpx.get(f"{url}/router/metrics", timeout=10).text
    lines = (line for line in page.splitlines() if line.startswith(GAUGE))
    return max((float(line.rpartition(" ")[2]) for line in lines), default=0.0)
