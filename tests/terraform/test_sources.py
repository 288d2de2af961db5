"""Rules for the Terraform code itself, read as text."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.terraform.hcl_blocks import blocks
from tests.terraform.terraform_runner import SOURCE, require_terraform

pytestmark = pytest.mark.terraform

MOST_LINES = 150
FILES = sorted(path for path in SOURCE.rglob("*.tf") if ".terraform" not in path.parts)
MODULES = [path for path in FILES if SOURCE / "modules" in path.parents]


def named(path: Path) -> str:
    return str(path.relative_to(SOURCE))


def test_all_files_are_formatted() -> None:
    require_terraform()
    result = subprocess.run(
        ["terraform", "fmt", "-check", "-recursive", "-diff", SOURCE],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stdout) == (0, ""), "run: terraform fmt -recursive terraform"


@pytest.mark.parametrize("path", FILES, ids=named)
def test_a_file_is_short(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) < MOST_LINES


@pytest.mark.parametrize("path", FILES, ids=named)
def test_nothing_is_for_a_mock_alone(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"\b(max_retries|s3_use_path_style|skip_\w+|endpoints)\b\s*[={]", text)


@pytest.mark.parametrize("path", MODULES, ids=named)
def test_a_module_leaves_providers_to_its_caller(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not re.search(r'^\s*(provider|backend) "', text, re.MULTILINE)


@pytest.mark.parametrize("path", FILES, ids=named)
def test_only_the_provider_of_aws_is_used(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert set(re.findall(r'source\s*=\s*"([a-z-]+/[a-z-]+)"', text)) <= {"hashicorp/aws"}
    kinds = re.findall(r'^(?:resource|data|ephemeral) "(\w+)"', text, re.MULTILINE)
    assert [kind for kind in kinds if not kind.startswith(("aws_", "terraform_data"))] == []


@pytest.mark.parametrize(
    "path", [path for path in FILES if path.name.startswith("variables")], ids=named
)
def test_every_variable_is_typed_and_described(path: Path) -> None:
    for block in blocks(path.read_text(encoding="utf-8")):
        if block.kind == "variable":
            assert {"type", "description"} <= set(block.attributes), block.labels


@pytest.mark.parametrize("path", [path for path in FILES if path.name == "outputs.tf"], ids=named)
def test_every_output_is_described(path: Path) -> None:
    for block in blocks(path.read_text(encoding="utf-8")):
        assert "description" in block.attributes, block.labels


@pytest.mark.parametrize("path", FILES, ids=named)
def test_variables_and_outputs_stand_in_files_of_their_own(path: Path) -> None:
    kinds = set(re.findall(r'^(variable|output) "', path.read_text(encoding="utf-8"), re.MULTILINE))
    allowed = "variable" if path.name.startswith("variables") else "output"
    assert kinds <= ({allowed} if path.name.startswith(("variables", "outputs")) else set())


def test_environments_differ_in_their_data_alone() -> None:
    dev, prod = (
        {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.tf")}
        for folder in (SOURCE / "environments" / "dev", SOURCE / "environments" / "prod")
    )
    assert dev
    assert dev == prod
