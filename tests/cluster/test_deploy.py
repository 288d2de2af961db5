"""`headwater deploy` and `rollback` onto a real Ray Serve, by its REST API; AWS is moto."""

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from deployments.aws.config_history import ConfigHistory
from deployments.cli import main
from tests.cluster.local import Local, Model, running, serve_config
from tests.integration.aws_cluster import AwsCluster, aws_endpoint, make_cluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ALPHA = Model("alpha", step_s=0.001)
BETA = Model("beta", step_s=0.001)


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Local]:
    """Started before AWS's environment is replaced."""
    with running([ALPHA], tmp_path, num_gateways=1) as local:
        yield local


@pytest.fixture
def cluster(local: Local, monkeypatch: pytest.MonkeyPatch) -> Iterator[AwsCluster]:
    """Its secret is the token that Ray has made."""
    token = Path("~/.ray/auth_token").expanduser().read_text("ascii")
    with aws_endpoint(monkeypatch):
        yield make_cluster("river", token=token)


def test_files_come_into_force_in_turn_and_a_bad_one_does_not(
    local: Local, cluster: AwsCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    address = local.serve.dashboard_url
    where = ["--cluster", "river", "--address", address, "--timeout-s", "120"]
    one = _write(tmp_path / "one.yaml", [ALPHA])
    two = _write(tmp_path / "two.yaml", [ALPHA, BETA])
    assert main(["deploy", str(one), "--keep-sources", *where]) == 0
    assert main(["deploy", str(two), "--keep-sources", *where]) == 0
    assert _models(local) == {"alpha", "beta"}
    assert main(["status", *where[:4]]) == 0
    history = ConfigHistory(cluster.clients, cluster.card)
    assert [version.why for version in history.versions()] == [
        "deploy of one.yaml",
        "deploy of two.yaml",
    ]
    # What was stored by somebody else: two applications of one name, which Serve refuses.
    document = yaml.safe_load(one.read_text("utf-8"))
    document["applications"].append(document["applications"][0])
    key = history.store(yaml.safe_dump(document).encode())
    bad = history.point_at(key, after=history.current(), why="by hand")
    history.point_at(history.versions()[1].key, after=history.current(), why="back by hand")
    capsys.readouterr()
    assert main(["rollback", "--to", str(bad), *where]) == 1
    (error,) = capsys.readouterr().err.splitlines()
    assert error.startswith("Serve refused the file, version 4 stays in force: ")
    assert _models(local) == {"alpha", "beta"}
    assert main(["rollback", "--to", "1", *where]) == 0
    assert _models(local) == {"alpha"}


def _write(path: Path, models: list[Model]) -> Path:
    config = serve_config(models, port=8000, num_gateways=1)
    path.write_text(yaml.safe_dump(config), "utf-8")
    return path


def _models(local: Local) -> set[str]:
    with urllib.request.urlopen(f"{local.url}/v1/models", timeout=10) as response:
        answer: dict[str, Any] = json.load(response)
    return {model["id"] for model in answer["data"]}
