"""The rendered RayService has the structure that KubeRay's operator takes.

No operator and no Kubernetes are run.
"""

import copy
import functools
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator, ValidationError

REPOSITORY = Path(__file__).parents[2]
SERVE_FILE = REPOSITORY / "configs" / "llama-70b-tp8.yaml"
SCHEMA = json.loads(Path(__file__).with_name("kuberay_rayservice.schema.json").read_text("utf-8"))
INPUTS = {
    "name": "river",
    "serve_file": str(SERVE_FILE),
    "image": "registry.example.com/headwater:0.1.0",
    "redis": {"address": "redis:6379", "password_secret": "redis"},
    "nvme_path": "/mnt/nvme/headwater",
    "pools": {
        "cpu": {
            "instance_types": ["m7i.4xlarge"],
            "min_nodes": 1,
            "max_nodes": 2,
            "num_devices": 0,
            "num_cpus": 14,
            "markets": [{"market": "on-demand"}],
        },
        "h100": {
            "instance_types": ["p5en.48xlarge", "p5.48xlarge"],
            "min_nodes": 0,
            "max_nodes": 4,
            "num_devices": 8,
            "num_cpus": 180,
            "memory_gb": 1800,
            "markets": [{"market": "spot"}],
        },
    },
}

pytestmark = [pytest.mark.terraform, pytest.mark.timeout(120)]


@functools.cache
def _rendered() -> str:
    if shutil.which("terraform") is None:
        pytest.skip("terraform is not installed")
    with tempfile.TemporaryDirectory() as name:
        root = Path(name) / "kuberay"
        shutil.copytree(REPOSITORY / "terraform" / "kuberay", root)
        (root / "test.auto.tfvars.json").write_text(json.dumps(INPUTS), "utf-8")
        _terraform(root, "init", "-backend=false", "-input=false")
        _terraform(root, "apply", "-auto-approve", "-input=false")
        return _terraform(root, "output", "-raw", "rayservice")


def _terraform(root: Path, *arguments: str) -> str:
    result = subprocess.run(
        ["terraform", *arguments],
        cwd=root,
        env={**os.environ, "TF_CLI_CONFIG_FILE": os.devnull, "TF_IN_AUTOMATION": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture
def manifest() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(_rendered())
    return loaded


def test_the_operators_structure_takes_it(manifest: dict[str, Any]) -> None:
    Draft202012Validator(SCHEMA).validate(manifest)


def test_a_wrong_field_is_refused(manifest: dict[str, Any]) -> None:
    wrong = copy.deepcopy(manifest)
    wrong["spec"]["rayClusterConfig"]["autoscalerOptions"]["idleTimeoutSecond"] = 1
    with pytest.raises(ValidationError, match="idleTimeoutSecond"):
        Draft202012Validator(SCHEMA).validate(wrong)


def test_a_wrong_value_is_refused(manifest: dict[str, Any]) -> None:
    wrong = copy.deepcopy(manifest)
    wrong["spec"]["rayClusterConfig"]["workerGroupSpecs"][0]["maxReplicas"] = "four"
    with pytest.raises(ValidationError, match="four"):
        Draft202012Validator(SCHEMA).validate(wrong)


def test_what_is_served_is_the_file_on_an_address_the_service_reaches(
    manifest: dict[str, Any],
) -> None:
    served = yaml.safe_load(manifest["spec"]["serveConfigV2"])
    wanted = yaml.safe_load(SERVE_FILE.read_text("utf-8"))
    assert served["applications"] == wanted["applications"]
    assert served["http_options"] == {**wanted["http_options"], "host": "0.0.0.0"}


def test_each_pool_is_a_group_with_its_devices_and_bounds(manifest: dict[str, Any]) -> None:
    cpu, h100 = manifest["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    assert (cpu["groupName"], cpu["minReplicas"], cpu["maxReplicas"]) == ("cpu", 1, 2)
    assert cpu["template"]["spec"]["tolerations"] == []
    limits = h100["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {"nvidia.com/gpu": "8", "memory": "1800G"}
    (toleration,) = h100["template"]["spec"]["tolerations"]
    assert toleration == {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}


def test_pods_end_after_their_answers_and_keep_weights_on_the_nodes_disks(
    manifest: dict[str, Any],
) -> None:
    pod = manifest["spec"]["rayClusterConfig"]["workerGroupSpecs"][1]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] == 600
    assert pod["volumes"][0]["hostPath"]["path"] == "/mnt/nvme/headwater"
    (container,) = pod["containers"]
    assert container["volumeMounts"] == [{"name": "home", "mountPath": "/headwater"}]
    assert {"name": "HEADWATER_HOME", "value": "/headwater"} in container["env"]


def test_ray_asks_for_a_token_and_its_state_outlives_the_head(manifest: dict[str, Any]) -> None:
    cluster = manifest["spec"]["rayClusterConfig"]
    assert cluster["authOptions"] == {"mode": "token", "secretName": "ray-token"}
    assert cluster["gcsFaultToleranceOptions"]["redisAddress"] == "redis:6379"
    assert cluster["enableInTreeAutoscaling"] is True
