"""What the modules of nodes make, as their own tests with a mock provider see it.

Run as a program, it writes the golden files.
"""

import base64
import functools
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.terraform.provider_mirror import plugin_folder

REPOSITORY = Path(__file__).parents[2]
GOLDEN = Path(__file__).with_name("golden")
TIMEOUT_S = 120


@dataclass(frozen=True, slots=True)
class MockedRun:
    """The state after one ``run`` of a module's test file."""

    outputs: Mapping[str, Any]
    launch_templates: Mapping[str, Mapping[str, Any]]
    """By name."""

    def user_data(self, template: str) -> str:
        return base64.b64decode(self.launch_templates[template]["user_data"]).decode()


@functools.cache
def mocked_runs(module: str, test_file: str) -> Mapping[str, MockedRun]:
    """States by the name of the run. Skips the test where there is no Terraform.

    Fails it, with what Terraform says, when a run fails.
    """
    if shutil.which("terraform") is None:
        pytest.skip("terraform is not installed")
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        for part in ("modules", "images"):
            shutil.copytree(REPOSITORY / "terraform" / part, root / part)
        folder = root / "modules" / module
        mirror = plugin_folder()
        _terraform(folder, "init", "-backend=false", *([f"-plugin-dir={mirror}"] if mirror else []))
        lines = _terraform(folder, "test", "-json", "-verbose", f"-filter=tests/{test_file}")
    return dict(_run_of(json.loads(line)) for line in lines if '"type":"test_state"' in line)


def rendered() -> dict[str, str]:
    """User data by the name of its golden file."""
    pool = mocked_runs("gpu_pool", "offers.tftest.hcl")
    head = mocked_runs("head", "head.tftest.hcl")
    return {
        "worker.sh": pool[
            "spot_and_on_demand_share_one_template_over_all_types_and_zones"
        ].user_data("river-h100-open"),
        "worker_efa.sh": pool["with_efa_all_cards_get_adapters_and_each_zone_its_group"].user_data(
            "river-h100-open-16-cards-us-east-1a"
        ),
        "worker_cpu.sh": pool["a_pool_without_gpus_offers_none"].user_data("river-cpu-open"),
        "head.sh": head["one_head_is_kept_in_whichever_zone"].user_data("river-head"),
        "head_memory_db.sh": head["memory_db_is_for_the_head_alone"].user_data("river-head"),
    }


def _terraform(folder: Path, *arguments: str) -> list[str]:
    result = subprocess.run(
        ["terraform", *arguments],
        cwd=folder,
        env={**os.environ, "TF_CLI_CONFIG_FILE": os.devnull, "TF_IN_AUTOMATION": "1"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if result.returncode != 0:
        told = [line for line in result.stdout.splitlines() if '"@level":"error"' in line]
        pytest.fail("\n".join([f"terraform {arguments[0]}:", *told, result.stderr]))
    return result.stdout.splitlines()


def _run_of(line: dict[str, Any]) -> tuple[str, MockedRun]:
    state = line["test_state"]
    return line["@testrun"], MockedRun(
        outputs={name: output["value"] for name, output in state["outputs"].items()},
        launch_templates={
            resource["values"]["name"]: resource["values"]
            for resource in state["root_module"]["resources"]
            if resource["type"] == "aws_launch_template"
        },
    )


if __name__ == "__main__":
    for file, text in rendered().items():
        (GOLDEN / file).write_text(text, encoding="utf-8")
