"""What `kill -9` leaves behind: nothing that runs, and no folder after the next start."""

import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import yaml

from deployments.local_environment import free_port
from deployments.private_dir import remove_abandoned
from tests.cluster.local import Model, running, serve_config
from tests.cluster.processes import family_of, replicas

MODEL = Model("alpha")
HAPROXY = "bin/haproxy"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def test_nothing_runs_on_when_serve_was_killed(tmp_path: Path) -> None:
    with running([MODEL], tmp_path, num_gateways=1) as local:
        family = family_of(local.pid)
        assert replicas(local.pid, HAPROXY)  # it would keep the port
        psutil.Process(local.pid).kill()
    _, left = psutil.wait_procs(family, timeout=10)
    assert left == []


def test_nothing_stays_when_the_command_was_killed(tmp_path: Path) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text(
        yaml.safe_dump(serve_config([MODEL], port=free_port(), num_gateways=1)), "utf-8"
    )
    command = [sys.executable, "-m", "deployments.cli", "serve", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        folder = None
        for line in process.stdout:
            folder = folder or re.search(r"logs in (/\S+?/hw-[^/]+)/", line)
            if "stop: Ctrl-C" in line:
                break
        family, proxies = family_of(process.pid), replicas(process.pid, HAPROXY)
        process.kill()
    assert folder is not None
    assert proxies
    _, left = psutil.wait_procs(family, timeout=60)
    assert left == []
    assert Path(folder[1]).exists()
    remove_abandoned(Path(folder[1]).parent)
    assert not Path(folder[1]).exists()
