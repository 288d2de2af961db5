"""The environment dev on a mock AWS, as an operator applies it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.terraform.account_inventory import inventory
from tests.terraform.moto_shim import MockAws
from tests.terraform.terraform_runner import STATE_BUCKET, Root, TerraformFailed, copied_root
from tests.terraform.timings import Timings

_QUICK = """\
module "storage" {
  lifecycle_rules = false
}
"""
"""Making a lifecycle rule waits for a minute; its text is tested by the module's own tests."""


@dataclass(frozen=True, slots=True)
class AppliedEnvironment:
    root: Root
    aws: MockAws
    plan: Mapping[str, Any]
    """That was applied to an empty account."""
    outputs: Mapping[str, Any]
    settings: Mapping[str, Any]
    """Of its tfvars, with what the mock needs."""
    before: frozenset[str]
    """What stood in the account before."""

    @property
    def cluster(self) -> str:
        name: str = self.settings["name"]
        return name

    def tagged(self, kind: str) -> list[str]:
        """Addresses of what was planned of a kind."""
        return [each["address"] for each in self.plan["resource_changes"] if each["type"] == kind]


def apply_dev(aws: MockAws, parent: Path, timings: Timings) -> AppliedEnvironment:
    """Init, plan, apply. Raises `TerraformFailed`."""
    settings = prepare_account(aws, parent, "dev", timings)
    root = copied_root(parent, "environments/dev", aws, timings)
    (root.folder / "quick_override.tf").write_text(_QUICK, encoding="utf-8")
    root.set_variables(**found(settings))
    before = inventory(aws)
    initialised = root.init_with_state()
    if initialised.status != 0:
        raise TerraformFailed(f"terraform init in environments/dev:\n{initialised.told}")
    plan = root.planned(out="first")
    root.apply("first")
    return AppliedEnvironment(root, aws, plan, root.outputs(), settings, before)


def prepare_account(aws: MockAws, parent: Path, name: str, timings: Timings) -> dict[str, Any]:
    """Makes what stands before the first apply: the bucket of the states and a certificate.

    Returns the settings of the environment with that certificate and an image that is there: AWS's
    own isn't.
    """
    source = copied_root(parent, f"environments/{name}", aws, timings).folder
    settings: dict[str, Any] = json.loads(
        (source / "cluster.auto.tfvars.json").read_text(encoding="utf-8")
    )
    region = settings["region"]
    s3 = aws.client("s3")
    if STATE_BUCKET not in [bucket["Name"] for bucket in s3.list_buckets()["Buckets"]]:
        s3.create_bucket(Bucket=STATE_BUCKET)
    certificate = aws.client("acm", region).request_certificate(DomainName=settings["domain"])
    settings["certificate_arn"] = certificate["CertificateArn"]
    images = aws.client("ec2", region).describe_images(Owners=["amazon"])["Images"]
    settings["ami_id"] = images[0]["ImageId"]
    return settings


def found(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What stands in the mock account and not in the environment's own settings."""
    return {name: settings[name] for name in ("ami_id", "certificate_arn")}
