"""What must hold for everything that a plan makes, as `terraform show -json` tells it.

A policy yields sentences, one for each thing that breaks it. Knows no module but the edge, which
alone may be reached from the internet.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

CLUSTER_TAG = "ray-cluster-name"
EDGE = "module.edge."
WORLD = ("0.0.0.0/0", "::/0")
MOST_HOPS = 2
"""Of answers of the metadata service: containers are one hop further."""


@dataclass(frozen=True, slots=True)
class Planned:
    """One resource as it will be."""

    address: str
    kind: str
    values: Mapping[str, Any]
    unknown: Mapping[str, Any]
    """Attributes that are known only after the apply."""

    def is_set(self, attribute: str) -> bool:
        return bool(self.values.get(attribute)) or self.unknown.get(attribute) is True

    def blocks(self, name: str) -> list[dict[str, Any]]:
        return list(self.values.get(name) or [])


Policy = Callable[[Sequence[Planned]], Iterator[str]]


def planned_resources(plan: Mapping[str, Any]) -> list[Planned]:
    """Without data sources and without what is deleted."""
    return [
        Planned(
            change["address"],
            change["type"],
            change["change"]["after"],
            change["change"].get("after_unknown") or {},
        )
        for change in plan["resource_changes"]
        if change["mode"] == "managed" and change["change"]["after"] is not None
    ]


def closed_to_the_world(resources: Sequence[Planned]) -> Iterator[str]:
    for resource in resources:
        if not resource.address.startswith(EDGE) and _lets_world_in(resource):
            yield f"{resource.address} lets the whole internet in"


def _lets_world_in(resource: Planned) -> bool:
    values = resource.values
    match resource.kind:
        case "aws_vpc_security_group_ingress_rule":
            return values.get("cidr_ipv4") in WORLD or values.get("cidr_ipv6") in WORLD
        case "aws_security_group_rule":
            return values.get("type") == "ingress" and _names_world(values)
        case "aws_security_group" | "aws_default_security_group":
            return any(_names_world(rule) for rule in resource.blocks("ingress"))
    return False


def _names_world(rule: Mapping[str, Any]) -> bool:
    blocks = [*(rule.get("cidr_blocks") or []), *(rule.get("ipv6_cidr_blocks") or [])]
    return any(block in WORLD for block in blocks)


def metadata_needs_a_token(resources: Sequence[Planned]) -> Iterator[str]:
    for resource in resources:
        if resource.kind not in ("aws_launch_template", "aws_instance"):
            continue
        options = next(iter(resource.blocks("metadata_options")), {})
        if options.get("http_tokens") != "required":
            yield f"{resource.address} answers metadata without a token (IMDSv1)"
        if (options.get("http_put_response_hop_limit") or MOST_HOPS + 1) > MOST_HOPS:
            yield f"{resource.address} lets metadata go further than {MOST_HOPS} hops"


def carries_the_cluster(resources: Sequence[Planned]) -> Iterator[str]:
    for resource in resources:
        if "tags_all" in resource.values and CLUSTER_TAG not in (resource.values["tags_all"] or {}):
            yield f"{resource.address} has no tag {CLUSTER_TAG}"
        if resource.kind == "aws_launch_template":
            tagged = {
                block["resource_type"]
                for block in resource.blocks("tag_specifications")
                if CLUSTER_TAG in (block.get("tags") or {})
            }
            for kind in {"instance", "volume"} - tagged:
                yield f"{resource.address} makes a {kind} without a tag {CLUSTER_TAG}"
        if resource.kind == "aws_autoscaling_group":
            keys = {tag["key"] for tag in resource.blocks("tag") if tag["propagate_at_launch"]}
            if CLUSTER_TAG not in keys:
                yield f"{resource.address} makes instances without a tag {CLUSTER_TAG}"


_KEY_ATTRIBUTES = {
    "aws_cloudwatch_log_group": "kms_key_id",
    "aws_ebs_volume": "kms_key_id",
    "aws_memorydb_cluster": "kms_key_arn",
    "aws_prometheus_workspace": "kms_key_arn",
    "aws_secretsmanager_secret": "kms_key_id",
    "aws_sns_topic": "kms_master_key_id",
    "aws_sqs_queue": "kms_master_key_id",
}


def encrypted_with_a_key_of_ours(resources: Sequence[Planned]) -> Iterator[str]:
    for resource in resources:
        attribute = _KEY_ATTRIBUTES.get(resource.kind)
        if attribute and not resource.is_set(attribute):
            yield f"{resource.address} is not encrypted: {attribute} is not set"
        if resource.kind == "aws_launch_template":
            yield from _unencrypted_volumes(resource)
        if resource.kind == "aws_ecr_repository":
            kinds = [
                each["encryption_type"] for each in resource.blocks("encryption_configuration")
            ]
            if kinds != ["KMS"]:
                yield f"{resource.address} is not encrypted by KMS"
        if resource.kind == "aws_kms_key" and not resource.values.get("enable_key_rotation"):
            yield f"{resource.address} is never rotated"


def _unencrypted_volumes(template: Planned) -> Iterator[str]:
    volumes = [
        volume
        for mapping in template.blocks("block_device_mappings")
        for volume in mapping.get("ebs") or []
    ]
    if not volumes:
        yield f"{template.address} says nothing of its root volume, so nobody encrypts it"
    for volume in volumes:
        if str(volume.get("encrypted")).lower() != "true":
            yield f"{template.address} has a volume that is not encrypted"


def buckets_are_encrypted_and_closed(resources: Sequence[Planned]) -> Iterator[str]:
    """Each bucket has encryption and a full block of public access, of the same index."""
    buckets = [each for each in resources if each.kind == "aws_s3_bucket"]
    for kind, holds in (
        ("aws_s3_bucket_server_side_encryption_configuration", _encrypts),
        ("aws_s3_bucket_public_access_block", _blocks_all),
    ):
        kept = [each for each in resources if each.kind == kind and holds(each)]
        if len(kept) < len(buckets):
            names = ", ".join(each.address for each in buckets)
            yield f"of the buckets {names} only {len(kept)} have a sound {kind}"


def _encrypts(configuration: Planned) -> bool:
    algorithms = [
        default["sse_algorithm"]
        for rule in configuration.blocks("rule")
        for default in rule.get("apply_server_side_encryption_by_default") or []
    ]
    return bool(algorithms) and set(algorithms) <= {"aws:kms", "aws:kms:dsse", "AES256"}


def _blocks_all(block: Planned) -> bool:
    return all(
        block.values.get(name)
        for name in (
            "block_public_acls",
            "block_public_policy",
            "ignore_public_acls",
            "restrict_public_buckets",
        )
    )


def without_public_addresses(resources: Sequence[Planned]) -> Iterator[str]:
    for resource in resources:
        values = resource.values
        if resource.kind == "aws_subnet" and values.get("map_public_ip_on_launch"):
            yield f"{resource.address} gives its instances public addresses"
        if resource.kind == "aws_instance" and values.get("associate_public_ip_address"):
            yield f"{resource.address} has a public address"
        for interface in resource.blocks("network_interfaces"):
            if str(interface.get("associate_public_ip_address")).lower() == "true":
                yield f"{resource.address} gives its instances public addresses"


def answers_clients_by_tls(resources: Sequence[Planned]) -> Iterator[str]:
    for listener in resources:
        if listener.kind != "aws_lb_listener":
            continue
        actions = {action["type"] for action in listener.blocks("default_action")}
        if listener.values.get("protocol") == "HTTPS":
            if "TLS13" not in (listener.values.get("ssl_policy") or ""):
                yield f"{listener.address} has a policy of TLS without 1.3"
        elif actions != {"redirect"}:
            yield f"{listener.address} answers without TLS"


POLICIES: tuple[Policy, ...] = (
    closed_to_the_world,
    metadata_needs_a_token,
    carries_the_cluster,
    encrypted_with_a_key_of_ours,
    buckets_are_encrypted_and_closed,
    without_public_addresses,
    answers_clients_by_tls,
)
