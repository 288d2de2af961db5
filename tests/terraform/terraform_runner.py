"""Runs Terraform on a copy of this project's code, with bounded time.

What only a mock needs (path-style addresses, few retries) is written into override files of the
copy, never into modules or environments.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.terraform.moto_shim import REGION, MockAws
from tests.terraform.provider_mirror import plugin_folder
from tests.terraform.timings import Timings

SOURCE = Path(__file__).parents[2] / "terraform"
STATE_BUCKET = "headwater-state"
NO_CHANGES, CHANGES = 0, 2
"""What ``plan -detailed-exitcode`` ends with."""
_TIMEOUT_S = 300
_MOCK_PROVIDER = """\
provider "aws" {
  s3_use_path_style = true
  max_retries       = 2
}
"""
"""The mock may close a connection that was kept open: asked again, it answers. What it lacks fails
as often as it is asked, 25 times by default."""


class TerraformFailed(Exception):
    """Has the command and all that it told."""


@dataclass(frozen=True, slots=True)
class Outcome:
    status: int
    told: str
    """Standard output, then standard error."""
    output: str


@dataclass(frozen=True, slots=True)
class Root:
    """One root module of a copy."""

    folder: Path
    environment: Mapping[str, str]
    timings: Timings = field(default_factory=Timings)

    @property
    def name(self) -> str:
        return f"{self.folder.parent.name}/{self.folder.name}"

    def run(self, *arguments: str, timeout_s: float = _TIMEOUT_S) -> Outcome:
        """Whatever the command's exit status is. Raises `TerraformFailed` when it doesn't end."""
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("AWS_", "TF_"))
        }
        with self.timings.step(f"{self.name}: terraform {_shown(arguments)}"):
            process = subprocess.Popen(
                ["terraform", *arguments],
                cwd=self.folder,
                env={**inherited, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            try:
                output, errors = process.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired:
                process.kill()
                output, errors = process.communicate()
                raise TerraformFailed(
                    f"terraform {_shown(arguments)} in {self.name} took over {timeout_s:.0f} s:"
                    f"\n{output}{errors}"
                ) from None
        return Outcome(process.returncode, output + errors, output)

    def succeed(self, *arguments: str) -> str:
        """Standard output. Raises `TerraformFailed`."""
        outcome = self.run(*arguments)
        if outcome.status != 0:
            raise TerraformFailed(
                f"terraform {_shown(arguments)} in {self.name} ended with {outcome.status}:"
                f"\n{outcome.told}"
            )
        return outcome.output

    def init(self, *arguments: str) -> None:
        self.succeed("init", "-input=false", "-no-color", *plugin_arguments(), *arguments)

    def init_with_state(self, bucket: str = STATE_BUCKET) -> Outcome:
        """With the S3 backend, as an environment is used. Never raises for its status."""
        return self.run(
            "init",
            "-input=false",
            "-no-color",
            "-reconfigure",
            *plugin_arguments(),
            f"-backend-config=bucket={bucket}",
            f"-backend-config=key={self.folder.name}/terraform.tfstate",
            f"-backend-config=region={REGION}",
            "-backend-config=use_path_style=true",
            "-backend-config=max_retries=1",
        )

    def plan(self, *arguments: str, out: str = "plan") -> Outcome:
        """Ends with `NO_CHANGES`, `CHANGES` or 1."""
        return self.run(
            "plan", "-input=false", "-no-color", "-detailed-exitcode", f"-out={out}", *arguments
        )

    def planned(self, *arguments: str, out: str = "plan") -> dict[str, Any]:
        """The plan, as ``show -json`` tells it. Raises `TerraformFailed`."""
        outcome = self.plan(*arguments, out=out)
        if outcome.status not in (NO_CHANGES, CHANGES):
            raise TerraformFailed(f"terraform plan in {self.name}:\n{outcome.told}")
        shown: dict[str, Any] = json.loads(self.succeed("show", "-json", out))
        return shown

    def apply(self, *arguments: str) -> None:
        self.succeed("apply", "-input=false", "-no-color", "-auto-approve", *arguments)

    def destroy(self) -> None:
        self.succeed("destroy", "-input=false", "-no-color", "-auto-approve")

    def outputs(self) -> dict[str, Any]:
        told = json.loads(self.succeed("output", "-json"))
        return {name: each["value"] for name, each in told.items()}

    def set_variables(self, **values: object) -> None:
        """In force over the environment's own; each call replaces the one before."""
        path = self.folder / "zz-proof.auto.tfvars.json"
        path.write_text(json.dumps(values, indent=2), encoding="utf-8")


def require_terraform() -> None:
    """Skips where there is no Terraform or no provider for it."""
    if shutil.which("terraform") is None:
        pytest.skip("terraform is not installed")
    if plugin_folder() is None:
        pytest.skip(
            "no folder holds registry.terraform.io/hashicorp/aws: name one in TF_PLUGIN_DIR"
        )


def plugin_arguments() -> list[str]:
    """Of ``terraform init``."""
    mirror = plugin_folder()
    return [f"-plugin-dir={mirror}"] if mirror else []


def copied_root(parent: Path, name: str, aws: MockAws | None, timings: Timings) -> Root:
    """Copies all of ``terraform/`` below ``parent``; ``name`` is like ``environments/dev``.

    What is served by examples of its tests lies beside it.
    """
    shutil.copytree(SOURCE.parent / "configs", parent / "configs", dirs_exist_ok=True)
    copy = parent / "terraform"
    shutil.copytree(
        SOURCE, copy, ignore=shutil.ignore_patterns(".terraform", "*.tfstate*"), dirs_exist_ok=True
    )
    folder = copy / name
    if aws is not None:
        (folder / "provider_override.tf").write_text(_MOCK_PROVIDER, encoding="utf-8")
    environment = {
        **(aws.environment() if aws else {}),
        "CHECKPOINT_DISABLE": "1",
        "TF_CLI_CONFIG_FILE": os.devnull,
        "TF_IN_AUTOMATION": "1",
    }
    return Root(folder, environment, timings)


def _shown(arguments: tuple[str, ...]) -> str:
    shown = [each for each in arguments if not each.startswith(("-input", "-no-color", "-plugin"))]
    return " ".join(each.split("=")[0] if each.startswith("-backend") else each for each in shown)
