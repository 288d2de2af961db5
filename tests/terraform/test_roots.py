"""Tests that modules and environments bring along pass, and those without tests are valid."""

from pathlib import Path

import pytest

from tests.terraform.terraform_runner import SOURCE, copied_root, require_terraform
from tests.terraform.timings import Timings

pytestmark = [pytest.mark.terraform, pytest.mark.timeout(300)]

ROOTS = sorted({str(path.parent.relative_to(SOURCE)) for path in SOURCE.glob("**/versions.tf")})


@pytest.mark.parametrize("name", ROOTS)
def test_its_own_tests_pass(name: str, copies: Path, timings: Timings) -> None:
    require_terraform()
    root = copied_root(copies, name, None, timings)
    root.init("-backend=false")
    if list((root.folder / "tests").glob("*.tftest.hcl")):
        told = root.succeed("test", "-no-color")
        assert "0 failed" in told
    else:
        root.succeed("validate", "-no-color")
