"""Each policy lets a sound resource pass, and names one that is not."""

from typing import Any

import pytest

from tests.terraform.plan_policies import CLUSTER_TAG, POLICIES, planned_resources

pytestmark = pytest.mark.terraform

TAGGED = {CLUSTER_TAG: "river"}
VOLUME = {"ebs": [{"encrypted": "true"}]}
SOUND_TEMPLATE: dict[str, Any] = {
    "metadata_options": [{"http_tokens": "required", "http_put_response_hop_limit": 2}],
    "block_device_mappings": [VOLUME],
    "network_interfaces": [{"associate_public_ip_address": "false"}],
    "tags_all": TAGGED,
    "tag_specifications": [
        {"resource_type": "instance", "tags": TAGGED},
        {"resource_type": "volume", "tags": TAGGED},
    ],
}
HTTPS = {"protocol": "HTTPS", "ssl_policy": "ELBSecurityPolicy-TLS13-1-2-2021-06"}
REDIRECT = {"protocol": "HTTP", "default_action": [{"type": "redirect"}]}
RULE = "aws_vpc_security_group_ingress_rule"


def complaints(
    kind: str,
    values: dict[str, Any],
    unknown: dict[str, Any] | None = None,
    address: str = "module.head.it",
) -> list[str]:
    change = {"after": values, "after_unknown": unknown or {}}
    plan = {
        "resource_changes": [
            {"address": address, "type": kind, "mode": "managed", "change": change}
        ]
    }
    resources = planned_resources(plan)
    return [sentence for policy in POLICIES for sentence in policy(resources)]


@pytest.mark.parametrize(
    ("kind", "values", "unknown"),
    [
        ("aws_launch_template", SOUND_TEMPLATE, {}),
        ("aws_sqs_queue", {"tags_all": TAGGED}, {"kms_master_key_id": True}),
        ("aws_sns_topic", {"kms_master_key_id": "a-key"}, {}),
        ("aws_lb_listener", HTTPS, {}),
        ("aws_lb_listener", REDIRECT, {}),
        (RULE, {"cidr_ipv4": "10.0.0.0/8"}, {}),
        ("aws_kms_key", {"enable_key_rotation": True}, {}),
        ("aws_autoscaling_group", {"tag": [{"key": CLUSTER_TAG, "propagate_at_launch": True}]}, {}),
    ],
)
def test_what_is_sound_passes(kind: str, values: dict[str, Any], unknown: dict[str, Any]) -> None:
    assert complaints(kind, values, unknown) == []


@pytest.mark.parametrize(
    ("kind", "values", "complaint"),
    [
        (RULE, {"cidr_ipv4": "0.0.0.0/0"}, "lets the whole internet in"),
        (RULE, {"cidr_ipv6": "::/0"}, "lets the whole internet in"),
        (
            "aws_security_group",
            {"ingress": [{"cidr_blocks": ["10.0.0.0/8", "0.0.0.0/0"]}]},
            "lets the whole internet in",
        ),
        (
            "aws_launch_template",
            {
                **SOUND_TEMPLATE,
                "metadata_options": [{"http_tokens": "optional", "http_put_response_hop_limit": 1}],
            },
            "IMDSv1",
        ),
        (
            "aws_launch_template",
            {
                **SOUND_TEMPLATE,
                "metadata_options": [{"http_tokens": "required", "http_put_response_hop_limit": 3}],
            },
            "further than 2 hops",
        ),
        (
            "aws_launch_template",
            {**SOUND_TEMPLATE, "block_device_mappings": [{"ebs": [{"encrypted": "false"}]}]},
            "volume that is not encrypted",
        ),
        ("aws_launch_template", {**SOUND_TEMPLATE, "block_device_mappings": []}, "root volume"),
        (
            "aws_launch_template",
            {**SOUND_TEMPLATE, "tag_specifications": SOUND_TEMPLATE["tag_specifications"][:1]},
            "makes a volume without a tag",
        ),
        (
            "aws_launch_template",
            {**SOUND_TEMPLATE, "network_interfaces": [{"associate_public_ip_address": "true"}]},
            "public addresses",
        ),
        ("aws_sqs_queue", {"tags_all": TAGGED}, "kms_master_key_id is not set"),
        ("aws_cloudwatch_log_group", {}, "kms_key_id is not set"),
        ("aws_secretsmanager_secret", {"kms_key_id": ""}, "kms_key_id is not set"),
        (
            "aws_ecr_repository",
            {"encryption_configuration": [{"encryption_type": "AES256"}]},
            "not encrypted by KMS",
        ),
        ("aws_kms_key", {"enable_key_rotation": False}, "never rotated"),
        ("aws_vpc", {"tags_all": {"Name": "river"}}, f"no tag {CLUSTER_TAG}"),
        ("aws_autoscaling_group", {"tag": []}, "makes instances without a tag"),
        ("aws_subnet", {"map_public_ip_on_launch": True}, "public addresses"),
        ("aws_lb_listener", {"protocol": "HTTP", "default_action": []}, "answers without TLS"),
        ("aws_lb_listener", {**HTTPS, "ssl_policy": "ELBSecurityPolicy-2016-08"}, "without 1.3"),
    ],
)
def test_what_breaks_a_policy_is_named(kind: str, values: dict[str, Any], complaint: str) -> None:
    told = complaints(kind, values)
    assert len(told) == 1
    assert told[0].startswith("module.head.it ")
    assert complaint in told[0]


def test_the_edge_alone_may_be_open() -> None:
    assert complaints(RULE, {"cidr_ipv4": "0.0.0.0/0"}, address="module.edge.it") == []


def test_a_bucket_alone_lacks_encryption_and_a_block_of_public_access() -> None:
    told = complaints("aws_s3_bucket", {"bucket": "kept"})
    assert [sentence.rsplit(" ", 1)[1] for sentence in told] == [
        "aws_s3_bucket_server_side_encryption_configuration",
        "aws_s3_bucket_public_access_block",
    ]
