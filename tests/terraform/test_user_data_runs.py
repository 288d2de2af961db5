"""What user data does on a fresh instance, and when a step fails."""

import stat
from pathlib import Path

import pytest

from tests.terraform.mocked_modules import GOLDEN
from tests.terraform.node_sandbox import TOKEN, WHEEL_KEY, NodeSandbox

pytestmark = pytest.mark.terraform

WORKER = (GOLDEN / "worker.sh").read_text(encoding="utf-8")
HEAD = (GOLDEN / "head.sh").read_text(encoding="utf-8")
ENVIRONMENT = {
    "AWS_REGION": "us-east-1",
    "HEADWATER_CLUSTER": "river",
    "RAY_AUTH_MODE": "token",
    "RAY_CLOUD_INSTANCE_ID": "i-0123456789abcdef0",
    "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "deployments.edge:middlewares",
    "RAY_enable_autoscaler_v2": "1",
}


@pytest.fixture
def node(tmp_path: Path) -> NodeSandbox:
    return NodeSandbox.made_in(tmp_path)


@pytest.mark.parametrize(("script", "node_type"), [(WORKER, "h100"), (HEAD, "head")])
def test_an_instance_becomes_a_node(node: NodeSandbox, script: str, node_type: str) -> None:
    result = node.run(script)
    assert result.returncode == 0, result.stdout
    environment = dict(line.split("=", 1) for line in node.read("etc/headwater/node.env").split())
    assert environment.items() >= {**ENVIRONMENT, "RAY_NODE_TYPE_NAME": node_type}.items()
    assert environment["HEADWATER_HOME"] == f"{node.folder}/mnt/nvme/headwater"
    token = Path(environment["RAY_AUTH_TOKEN_PATH"])
    assert token.read_text(encoding="utf-8") == TOKEN
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    enabled = [call for call in node.calls("systemctl") if "enable --now" in call]
    assert "headwater-ray.service headwater-agent.service" in enabled[0]
    assert node.calls("systemctl")[-1] == "systemctl stop headwater-start-deadline.timer"
    assert node.calls("shutdown") == []


@pytest.mark.parametrize("script", [WORKER, HEAD])
def test_the_token_is_told_to_nobody(node: NodeSandbox, script: str) -> None:
    result = node.run(script)
    told = result.stdout + result.stderr + node.read("calls") + node.read("etc/headwater/node.env")
    assert TOKEN not in told


def test_a_bare_image_is_provisioned_with_the_wheel_and_its_versions(node: NodeSandbox) -> None:
    node.run(WORKER)
    folder = "/opt/headwater/download"
    assert node.calls("provision") == [
        f"provision {folder}/headwater-0.1.0-py3-none-any.whl {folder}/constraints.txt cuda"
    ]
    assert node.read("opt/headwater/wheel").strip() == WHEEL_KEY


def test_an_image_with_the_same_wheel_fetches_nothing(node: NodeSandbox) -> None:
    node.write("opt/headwater/wheel", f"{WHEEL_KEY}\n")
    node.run(WORKER)
    assert node.calls("provision") == []
    assert [call for call in node.calls("aws") if call.startswith("aws s3")] == []


def test_several_disks_become_one_file_system(node: NodeSandbox) -> None:
    node.write(
        "disks",
        "/dev/nvme0n1 Amazon Elastic Block Store\n"
        "/dev/nvme1n1 Amazon EC2 NVMe Instance Storage\n"
        "/dev/nvme2n1 Amazon EC2 NVMe Instance Storage\n",
    )
    node.run(WORKER)
    assert node.calls("mdadm") == [
        "mdadm --create /dev/md0 --run --force --level=0 --raid-devices=2 /dev/nvme1n1 /dev/nvme2n1"
    ]
    assert node.calls("mkfs.xfs") == ["mkfs.xfs -q -f -K -L headwater /dev/md0"]
    assert node.calls("mount") == ["mount /mnt/nvme"]
    assert "LABEL=headwater" in node.read("etc/fstab")


def test_one_disk_needs_no_array(node: NodeSandbox) -> None:
    node.write("disks", "/dev/nvme1n1 Amazon EC2 NVMe Instance Storage\n")
    node.run(WORKER)
    assert node.calls("mdadm") == []
    assert node.calls("mkfs.xfs") == ["mkfs.xfs -q -f -K -L headwater /dev/nvme1n1"]


def test_the_root_volume_is_never_formatted(node: NodeSandbox) -> None:
    node.write("disks", "/dev/nvme0n1 Amazon Elastic Block Store\n")
    assert node.run(WORKER).returncode == 0
    assert node.calls("mkfs.xfs") == node.calls("mount") == []
    assert (node.folder / "mnt/nvme/headwater").is_dir()


@pytest.mark.parametrize("script", [WORKER, HEAD])
@pytest.mark.parametrize("failing", ["token", "provision", "disk"])
def test_a_failing_step_ends_the_instance(node: NodeSandbox, script: str, failing: str) -> None:
    match failing:
        case "token":
            node.write("denied", "")
        case "provision":
            node.write("bucket/cluster/provision.sh", "exit 1\n")
        case _:
            node.write("disks", "/dev/nvme1n1 Amazon EC2 NVMe Instance Storage\n")
            node.stand_in("bin/mkfs.xfs", "exit 1")
    result = node.run(script)
    assert result.returncode == 1
    assert "this instance ends" in node.read("var/log/headwater/start.log")
    assert "shutdown -h now" in node.calls("shutdown")
    assert not any("enable" in call for call in node.calls("systemctl"))


def test_a_step_that_hangs_is_bounded(node: NodeSandbox) -> None:
    node.run(WORKER)
    assert node.calls("systemd-run") == [
        "systemd-run --quiet --unit=headwater-start-deadline --on-active=45min systemctl poweroff"
    ]


def test_missing_logs_are_no_failure(node: NodeSandbox) -> None:
    result = node.run(WORKER)
    assert (result.returncode, "the logs stay on this node" in result.stdout) == (0, True)


def test_the_first_head_makes_the_token(node: NodeSandbox) -> None:
    (node.folder / "secret").unlink()
    assert node.run(HEAD).returncode == 0
    assert node.read("secret") == TOKEN == node.read("etc/headwater/ray_token")


def test_a_later_head_keeps_the_token(node: NodeSandbox) -> None:
    node.write("secret", "an older token")
    node.run(HEAD)
    assert node.read("secret") == node.read("etc/headwater/ray_token") == "an older token"
    assert not any("put-secret-value" in call for call in node.calls("aws"))


def test_a_token_that_cannot_be_read_is_not_replaced(node: NodeSandbox) -> None:
    node.write("denied", "")
    node.run(HEAD)
    assert not any("put-secret-value" in call for call in node.calls("aws"))


def test_the_head_registers_its_own_address(node: NodeSandbox) -> None:
    node.run(HEAD)
    assert any(
        "--instance-id head --attributes AWS_INSTANCE_IPV4=10.40.0.7" in call
        for call in node.calls("aws")
    )


def test_the_autoscaler_file_follows_the_bucket(node: NodeSandbox) -> None:
    node.run(HEAD)
    refresh = str(node.folder / "opt/headwater/bin/refresh-autoscaler")
    node.write("bucket/cluster/autoscaler.yaml", "cluster_name: river\nmax_workers: 9\n")
    assert node.bash(refresh).returncode == 0
    assert "max_workers: 9" in node.read("etc/headwater/autoscaler.yaml")
    (node.folder / "bucket/cluster/autoscaler.yaml").unlink()
    assert node.bash(refresh).returncode == 1
    assert "max_workers: 9" in node.read("etc/headwater/autoscaler.yaml")
    assert sorted(path.name for path in (node.folder / "etc/headwater").glob("auto*")) == [
        "autoscaler.yaml"
    ]


@pytest.mark.parametrize(("status", "deploys"), [("{}", True), ("\n  chat: {}", False)])
def test_only_an_empty_serve_is_deployed_onto(
    node: NodeSandbox, status: str, *, deploys: bool
) -> None:
    node.run(HEAD)
    node.write("pointer", "3\n")
    node.stand_in("opt/headwater/venv/bin/serve", f"echo 'applications: {status}'")
    node.stand_in("opt/headwater/venv/bin/headwater", "")
    assert node.bash(str(node.folder / "opt/headwater/bin/deploy-current")).returncode == 0
    assert len(node.calls("headwater")) == deploys


def test_a_cluster_without_a_deployment_is_left_alone(node: NodeSandbox) -> None:
    node.run(HEAD)
    node.stand_in("opt/headwater/venv/bin/serve", "echo 'applications: {}'")
    node.stand_in("opt/headwater/venv/bin/headwater", "")
    assert node.bash(str(node.folder / "opt/headwater/bin/deploy-current")).returncode == 0
    assert node.calls("headwater") == []


def test_a_worker_ends_after_its_raylet(node: NodeSandbox) -> None:
    node.run(WORKER)
    node.write("raylet", "")
    # Lives longer than the test, as `ray start --block` does after a drain.
    node.stand_in("opt/headwater/venv/bin/ray", "exec /bin/sleep 2 >/dev/null 2>&1")
    result = node.bash(str(node.folder / "opt/headwater/bin/worker"))
    assert (result.returncode, "so does this node" in result.stdout) == (0, True)
    [start] = node.calls("ray")
    assert start.startswith("ray start --block ")
    assert "--address=head.river.internal:6379 --num-cpus=160 --num-gpus=8" in start
    assert start.endswith("--labels=headwater.pool=h100")


def test_a_worker_whose_ray_fails_fails_too(node: NodeSandbox) -> None:
    node.run(WORKER)
    node.stand_in("opt/headwater/venv/bin/ray", "exit 3")
    assert node.bash(str(node.folder / "opt/headwater/bin/worker")).returncode == 3


def test_a_worker_without_a_head_ends(node: NodeSandbox) -> None:
    node.run(WORKER.replace("SECONDS + 900", "SECONDS + 0"))
    node.stand_in("bin/timeout", "exit 1")
    result = node.bash(str(node.folder / "opt/headwater/bin/wait-for-head"))
    assert (result.returncode, "this instance ends" in result.stdout) == (1, True)
    assert node.calls("systemctl")[-1] == "systemctl poweroff"


@pytest.mark.parametrize("deployed", [True, False])
def test_the_weights_of_what_is_deployed_are_fetched(node: NodeSandbox, *, deployed: bool) -> None:
    node.run(WORKER)
    node.stand_in("opt/headwater/venv/bin/headwater", "")
    if deployed:
        node.write("pointer", "serve/4f5e.yaml\n")
        node.write("bucket/serve/4f5e.yaml", "applications: []\n")
    prefetch = node.folder / "opt/headwater/bin/prefetch"
    result = node.bash("-c", f"HEADWATER_HOME={node.folder}/mnt/nvme/headwater {prefetch}")
    assert (result.returncode == 0) is deployed
    assert node.calls("headwater") == (
        ["headwater models pull /mnt/nvme/headwater/serve.yaml"] if deployed else []
    )
