"""checkov finds nothing in the Terraform code but what is left out for a written reason."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.terraform.terraform_runner import SOURCE

pytestmark = [pytest.mark.terraform, pytest.mark.timeout(120)]

SETTINGS = SOURCE / ".checkov.yaml"
CHECKOV = SOURCE.parent / "build/checkov/bin/checkov"
SHORTEST_REASON = 20


def test_checkov_finds_nothing(tmp_path: Path) -> None:
    if not CHECKOV.exists():
        pytest.skip("checkov is not installed in build/checkov: make terraform-test tries to")
    result = subprocess.run(
        [CHECKOV, "--config-file", SETTINGS, "--directory", SOURCE, "--output", "json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert result.stdout, result.stderr[-2000:]
    told = json.loads(result.stdout)
    failed = [
        f"{check['check_id']} {check['resource']}: {check['check_name']}"
        for check in told["results"]["failed_checks"]
    ]
    assert failed == []
    assert told["summary"]["parsing_errors"] == 0
    assert told["summary"]["passed"] > 100


def test_each_check_that_is_left_out_has_a_reason() -> None:
    lines = re.findall(r"^  - (CKV\w+)[ ]*(?:# (.*))?$", SETTINGS.read_text(), re.MULTILINE)
    assert lines
    assert [check for check, reason in lines if len(reason) < SHORTEST_REASON] == []
    inline = [
        f"{path.name}: {line.strip()}"
        for path in SOURCE.rglob("*.tf")
        for line in path.read_text(encoding="utf-8").splitlines()
        if "checkov:skip=" in line
        and not re.search(rf"checkov:skip=CKV\w+:.{{{SHORTEST_REASON},}}", line)
    ]
    assert inline == []
