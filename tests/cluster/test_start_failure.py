"""`headwater serve` where only the engine itself can tell what is wrong."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import yaml

from deployments.local_environment import free_port
from tests.cluster.local import Model, serve_config

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


def test_an_engine_that_cannot_start_is_one_line_and_leaves_nothing_running(tmp_path: Path) -> None:
    config = serve_config([Model("alpha")], port=free_port(), num_gateways=1)
    config["applications"][1]["args"]["engine"] |= {"start_timeout_s": 0.01}
    path = tmp_path / "serve.yaml"
    path.write_text(yaml.safe_dump(config), "utf-8")
    before = set(psutil.pids())
    ended = subprocess.run(
        [sys.executable, "-m", "deployments.cli", "serve", str(path)],
        check=False,
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert line.startswith(f"{path}: alpha: not ready after 0.01 s; raise start_timeout_s")
    logs = re.search(r"\(logs: (/\S+)\)$", line)
    assert logs is not None
    assert Path(logs[1]).exists()
    assert not [process for process in _started_since(before) if _is_of(process, logs[1])]
    shutil.rmtree(Path(logs[1]).parents[2])


def _started_since(pids: set[int]) -> list[psutil.Process]:
    return [process for process in psutil.process_iter() if process.pid not in pids]


def _is_of(process: psutil.Process, logs: str) -> bool:
    folder = str(Path(logs).parents[2])
    try:
        return any(folder in part for part in process.cmdline())
    except psutil.Error:
        return False
