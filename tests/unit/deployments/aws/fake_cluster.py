"""A cluster without AWS: a parameter with its history, a bucket with S3's conditions, a Serve that
answers what it is told, and a clock that is turned by sleeping.
"""

import io
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, ClassVar

from botocore.exceptions import ClientError

from deployments.aws.aws_clients import AwsClients
from deployments.aws.cluster_card import ClusterCard, PoolCard
from deployments.aws.config_history import ConfigHistory, ConfigVersion
from deployments.aws.deploy_lock import DeployLock
from deployments.aws.deployment_run import Clock, put_in_force
from deployments.aws.launch_config import Market
from deployments.aws.serve_state import ServeState

CARD = ClusterCard(
    format=1,
    name="river",
    region="us-east-1",
    endpoint="https://llm.example.com",
    head_group="river-head",
    dashboard_port=8265,
    weights_bucket="river-weights",
    config_bucket="river-config",
    ray_token_secret_arn="arn:aws:secretsmanager:us-east-1:1:secret:t",
    events_queue_url="https://sqs.us-east-1.amazonaws.com/1/events",
    pools={
        "l40s": PoolCard(
            instance_types=("g6e.12xlarge",),
            min_nodes=0,
            max_nodes=2,
            num_devices=4,
            markets=(Market.SPOT,),
        )
    },
)
FIRST = b"applications: [{name: alpha}]\n"
SECOND = b"applications: [{name: beta}]\n"


class NotThere(ClientError):  # type: ignore[misc]
    pass


class AlreadyThere(ClientError):  # type: ignore[misc]
    pass


def refusal(code: str, kind: type[Any] = ClientError) -> Any:
    return kind({"Error": {"Code": code, "Message": "no"}}, "Call")


@dataclass
class FakeSsm:
    """One parameter and its history."""

    values: list[tuple[str, str]] = field(default_factory=list)
    before_put: Callable[[], None] = lambda: None

    exceptions: ClassVar[Any] = SimpleNamespace(
        ParameterNotFound=NotThere, ParameterAlreadyExists=AlreadyThere
    )

    def get_paginator(self, name: str) -> "FakeSsm":
        assert name == "get_parameter_history"
        return self

    def paginate(self, *, Name: str) -> list[dict[str, Any]]:  # noqa: N803  boto3's
        if not self.values:
            raise refusal("ParameterNotFound", NotThere)
        entries = [
            {
                "Value": value,
                "Version": number,
                "Description": why,
                "LastModifiedDate": datetime(2026, 1, number, tzinfo=UTC),
                "LastModifiedUser": "arn:aws:iam::1:user/ada",
            }
            for number, (value, why) in enumerate(self.values, 1)
        ]
        return [{"Parameters": entries}]

    def get_parameter(self, *, Name: str) -> dict[str, Any]:  # noqa: N803
        entry = self.paginate(Name=Name)[0]["Parameters"][-1]
        return {"Parameter": {key: entry[key] for key in ("Value", "Version", "LastModifiedDate")}}

    def put_parameter(self, **fields: Any) -> dict[str, Any]:
        self.before_put()
        if self.values and not fields["Overwrite"]:
            raise refusal("ParameterAlreadyExists", AlreadyThere)
        self.values.append((fields["Value"], fields["Description"]))
        return {"Version": len(self.values)}


@dataclass
class FakeS3:
    """Objects of one bucket, with S3's conditions."""

    objects: dict[str, bytes] = field(default_factory=dict)

    def put_object(self, **fields: Any) -> dict[str, Any]:
        there = self.objects.get(fields["Key"])
        if "IfNoneMatch" in fields and there is not None:
            raise refusal("PreconditionFailed")
        if "IfMatch" in fields and (there is None or fields["IfMatch"] != etag(there)):
            raise refusal("PreconditionFailed")
        self.objects[fields["Key"]] = fields["Body"]
        return {"ETag": etag(fields["Body"])}

    def get_object(self, *, Bucket: str, Key: str) -> dict[str, Any]:  # noqa: N803
        if Key not in self.objects:
            raise refusal("NoSuchKey")
        body = self.objects[Key]
        return {"Body": io.BytesIO(body), "ETag": etag(body)}

    def list_objects_v2(self, *, Bucket: str, Prefix: str) -> dict[str, Any]:  # noqa: N803
        found = [key for key in self.objects if key.startswith(Prefix)]
        return {"Contents": [{"Key": key, "ETag": etag(self.objects[key])} for key in found]}

    def delete_object(self, *, Bucket: str, Key: str) -> None:  # noqa: N803
        del self.objects[Key]


def etag(body: bytes) -> str:
    return f'"{hash(body)}"'


@dataclass
class FakeServe:
    """Answers in turn, the last one for ever."""

    answers: list[ServeState | Exception] = field(default_factory=lambda: [ServeState()])
    puts: list[dict[str, Any]] = field(default_factory=list)
    refusal: Exception | None = None

    def state(self) -> ServeState:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def put(self, config: dict[str, Any]) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.puts.append(config)


@dataclass
class Time:
    now_s: float = 0.0

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    @property
    def clock(self) -> Clock:
        return Clock(lambda: self.now_s, self.sleep)


class Cluster:
    """Everything that a deploy touches."""

    def __init__(self) -> None:
        self.ssm = FakeSsm()
        self.s3 = FakeS3()
        self.serve = FakeServe()
        self.time = Time()
        none: Any = None
        clients = AwsClients("us-east-1", self.ssm, self.s3, none, none, none)
        self.history = ConfigHistory(clients, CARD)
        self.lock = DeployLock(clients, "river-config", holder="me", now_s=lambda: self.time.now_s)

    def put(self, text: bytes, seen: ConfigVersion | None) -> int:
        return put_in_force(
            text, serve=self.serve, history=self.history, lock=self.lock, seen=seen, why="test"
        )
