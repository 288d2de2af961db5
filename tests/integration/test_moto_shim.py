"""The mock AWS keeps what moto alone would refuse, and refuses what a role may not do."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.terraform.moto_shim import REGION, MockAws, mock_aws

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def server() -> Iterator[MockAws]:
    with mock_aws() as mock:
        yield mock


@pytest.fixture
def aws(server: MockAws) -> MockAws:
    server.reset()
    return server


def test_it_keeps_placement_groups_and_capacity_reservations(aws: MockAws) -> None:
    ec2 = aws.client("ec2")
    ec2.create_placement_group(
        GroupName="near",
        Strategy="cluster",
        TagSpecifications=[
            {"ResourceType": "placement-group", "Tags": [{"Key": "of", "Value": "river"}]}
        ],
    )
    group = ec2.describe_placement_groups(GroupNames=["near"])["PlacementGroups"][0]
    assert (group["Strategy"], group["Tags"]) == ("cluster", [{"Key": "of", "Value": "river"}])
    made = ec2.create_capacity_reservation(
        InstanceType="p5.48xlarge",
        InstancePlatform="Linux/UNIX",
        AvailabilityZone=f"{REGION}a",
        InstanceCount=2,
    )["CapacityReservation"]["CapacityReservationId"]
    ec2.cancel_capacity_reservation(CapacityReservationId=made)
    kept = ec2.describe_capacity_reservations(CapacityReservationIds=[made])
    assert kept["CapacityReservations"][0]["State"] == "cancelled"
    ec2.delete_placement_group(GroupName="near")
    assert ec2.describe_placement_groups()["PlacementGroups"] == []


def test_a_bucket_that_denies_plain_http_still_answers(aws: MockAws) -> None:
    s3 = aws.client("s3")
    s3.create_bucket(Bucket="kept")
    deny = {"Effect": "Deny", "Principal": "*", "Action": "s3:*", "Resource": "*"}
    condition = {"Condition": {"Bool": {"aws:SecureTransport": "false"}}}
    _put_policy(s3, {**deny, **condition})
    s3.put_object(Bucket="kept", Key="a", Body=b"weights")
    assert s3.get_object(Bucket="kept", Key="a")["Body"].read() == b"weights"
    _put_policy(s3, deny)
    with pytest.raises(ClientError, match="Forbidden"):
        s3.get_object(Bucket="kept", Key="a")


def test_data_of_a_launch_template_holds_no_tags_of_the_template(aws: MockAws) -> None:
    ec2 = aws.client("ec2")
    made = ec2.create_launch_template(
        LaunchTemplateName="worker",
        LaunchTemplateData={
            "InstanceType": "g5.xlarge",
            "TagSpecifications": [
                {"ResourceType": "instance", "Tags": [{"Key": "kind", "Value": "worker"}]}
            ],
        },
        TagSpecifications=[
            {"ResourceType": "launch-template", "Tags": [{"Key": "of", "Value": "river"}]}
        ],
    )["LaunchTemplate"]
    versions = ec2.describe_launch_template_versions(LaunchTemplateId=made["LaunchTemplateId"])
    data = versions["LaunchTemplateVersions"][0]["LaunchTemplateData"]
    assert [tags["ResourceType"] for tags in data["TagSpecifications"]] == ["instance"]
    assert made["Tags"] == [{"Key": "of", "Value": "river"}]


def test_under_enforcement_a_role_does_what_it_may_and_no_more(aws: MockAws) -> None:
    aws.client("s3").create_bucket(Bucket="kept")
    iam = aws.client("iam")
    trust = {"Effect": "Allow", "Principal": {"AWS": "*"}, "Action": "sts:AssumeRole"}
    arn = iam.create_role(RoleName="reader", AssumeRolePolicyDocument=_document(trust))["Role"][
        "Arn"
    ]
    allow = {"Effect": "Allow", "Action": "s3:ListBucket", "Resource": "*"}
    iam.put_role_policy(RoleName="reader", PolicyName="read", PolicyDocument=_document(allow))
    s3 = aws.client_as(arn, "s3")
    with aws.enforced_iam():
        assert s3.list_objects_v2(Bucket="kept")["KeyCount"] == 0
        with pytest.raises(ClientError, match="AccessDenied"):
            s3.put_object(Bucket="kept", Key="a", Body=b"")
    s3.put_object(Bucket="kept", Key="a", Body=b"")


def test_a_second_mock_knows_nothing_of_the_first(aws: MockAws) -> None:
    aws.client("s3").create_bucket(Bucket="kept")
    aws.reset()
    assert aws.client("s3").list_buckets()["Buckets"] == []


def _document(statement: Mapping[str, object]) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]})


def _put_policy(s3: Any, statement: Mapping[str, object]) -> None:
    s3.put_bucket_policy(Bucket="kept", Policy=_document(statement))
