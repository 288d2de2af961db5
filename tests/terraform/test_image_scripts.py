"""Making an image: what is printed, and that no instance stays behind."""

from pathlib import Path

import pytest

from tests.terraform.mocked_modules import REPOSITORY
from tests.terraform.node_sandbox import NodeSandbox

pytestmark = pytest.mark.terraform

IMAGES = REPOSITORY / "terraform/images"
ARGUMENTS = {
    "--region": "us-east-1",
    "--subnet": "subnet-0a",
    "--security-group": "sg-0a",
    "--profile": "river-worker",
    "--bucket": "river-config",
    "--wheel-key": "wheels/1f2e3d/headwater-0.1.0-py3-none-any.whl",
}
AWS = r"""
case "$1 $2" in
  'ssm get-parameter') echo ami-0ba5e ;;
  'ssm describe-instance-information') echo Online ;;
  'ssm send-command') echo a-command ;;
  'ssm get-command-invocation') cat "$SANDBOX/status" ;;
esac
case "$*" in
  *run-instances*) echo i-0f00d ;;
  *create-image*) echo ami-0f1e2d ;;
esac"""


@pytest.fixture
def desk(tmp_path: Path) -> NodeSandbox:
    sandbox = NodeSandbox.made_in(tmp_path)
    sandbox.stand_in("bin/aws", AWS)
    sandbox.stand_in("bin/date", "echo 20260101-000000")
    sandbox.write("status", "Success\n")
    return sandbox


def _flat(arguments: dict[str, str]) -> list[str]:
    return [part for pair in arguments.items() for part in pair]


def _ended(desk: NodeSandbox) -> bool:
    return any("terminate-instances --instance-ids i-0f00d" in call for call in desk.calls("aws"))


def test_only_the_images_id_is_printed(desk: NodeSandbox) -> None:
    result = desk.bash(str(IMAGES / "build.sh"), *_flat(ARGUMENTS))
    assert (result.returncode, result.stdout) == (0, "ami-0f1e2d\n")
    assert _ended(desk)


def test_the_disk_is_encrypted_with_the_key_given(desk: NodeSandbox) -> None:
    key = "arn:aws:kms:us-east-1:123456789012:key/0"
    desk.bash(str(IMAGES / "build.sh"), *_flat({**ARGUMENTS, "--kms-key": key}))
    [launch] = [call for call in desk.calls("aws") if "run-instances" in call]
    assert '"Encrypted":true' in launch
    assert f'"KmsKeyId":"{key}"}}' in launch
    assert "HttpTokens=required" in launch


def test_a_failed_installation_leaves_neither_image_nor_instance(desk: NodeSandbox) -> None:
    desk.write("status", "Failed\n")
    result = desk.bash(str(IMAGES / "build.sh"), *_flat(ARGUMENTS))
    assert (result.returncode, result.stdout) == (1, "")
    assert "the installation ended with Failed" in result.stderr
    assert not any("create-image" in call for call in desk.calls("aws"))
    assert _ended(desk)


@pytest.mark.parametrize("missing", sorted(ARGUMENTS))
def test_a_missing_argument_starts_nothing(desk: NodeSandbox, missing: str) -> None:
    given = {name: value for name, value in ARGUMENTS.items() if name != missing}
    result = desk.bash(str(IMAGES / "build.sh"), *_flat(given))
    assert (result.returncode, result.stderr) == (
        1,
        f"build.sh: {missing} is missing: see the head of this file\n",
    )
    assert desk.calls("aws") == []


@pytest.mark.parametrize("value", ["a;reboot", "$(reboot)", "a b", "a'b"])
def test_arguments_cannot_become_commands(desk: NodeSandbox, value: str) -> None:
    result = desk.bash(str(IMAGES / "build.sh"), *_flat({**ARGUMENTS, "--bucket": value}))
    assert (result.returncode, "odd characters" in result.stderr) == (1, True)
    assert desk.calls("aws") == []


def test_provisioning_says_what_it_takes(desk: NodeSandbox) -> None:
    result = desk.bash(str(IMAGES / "provision.sh"))
    assert (result.returncode, result.stderr) == (
        1,
        "provision.sh: usage: provision.sh WHEEL CONSTRAINTS [EXTRAS]\n",
    )
