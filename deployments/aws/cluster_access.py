"""The way to the head's dashboard, which listens on the head's own address alone: a port forwarded
by SSM, and Ray's token.

Ports are forwarded by the AWS CLI and its session-manager-plugin: boto3 can only ask for a session.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

from deployments.aws.aws_clients import AwsClients, aws_errors, error_code
from deployments.aws.cluster_card import ClusterCard
from deployments.aws.errors import ClusterUnknown, TunnelBroken
from deployments.aws.serve_api import ServeApi
from deployments.haproxy import LOOPBACK
from deployments.local_environment import free_port
from deployments.report import reason_in

OPEN_TIMEOUT_S = 30.0
_POLL_S = 0.1
_STOP_TIMEOUT_S = 5.0

TUNNEL_PROGRAMS = ("aws", "session-manager-plugin")


@dataclass(frozen=True, slots=True)
class Way:
    """To the dashboard."""

    address: str
    why_ended: Callable[[], str | None]
    """None while it is open."""


def head_instance(clients: AwsClients, card: ClusterCard) -> str:
    """Its id. Raises `ClusterUnknown` while there is none, and `AwsRefused`."""
    with aws_errors(f"look for the head in {card.head_group}"):
        answer = clients.autoscaling.describe_auto_scaling_groups(
            AutoScalingGroupNames=[card.head_group]
        )
    groups = answer["AutoScalingGroups"]
    if not groups:
        raise ClusterUnknown(
            f"there is no auto scaling group {card.head_group}: apply Terraform again"
        )
    for instance in groups[0]["Instances"]:
        if instance["LifecycleState"] == "InService":
            return str(instance["InstanceId"])
    raise ClusterUnknown(
        f"no head is in service in {card.head_group}: it is starting, or can't; see the group's "
        "activity"
    )


def ray_token(clients: AwsClients, card: ClusterCard) -> str:
    """What Ray's dashboard asks for. Raises `ClusterUnknown`, `AwsRefused`."""
    from botocore.exceptions import ClientError

    with aws_errors(f"read the secret {card.ray_token_secret_arn}"):
        try:
            answer = clients.secrets.get_secret_value(SecretId=card.ray_token_secret_arn)
        except ClientError as error:
            if error_code(error) != "ResourceNotFoundException":
                raise
            raise ClusterUnknown(
                "the cluster has no Ray token yet: its head makes it at its first start, try again "
                "in some minutes"
            ) from error
    return str(answer["SecretString"]).strip()


def tunnel_command(instance: str, *, port: int, local_port: int, region: str) -> list[str]:
    parameters = {"portNumber": [str(port)], "localPortNumber": [str(local_port)]}
    return [
        *("aws", "ssm", "start-session", "--target", instance, "--region", region),
        *("--document-name", "AWS-StartPortForwardingSession"),
        *("--parameters", json.dumps(parameters)),
    ]


def check_programs(find: Callable[[str], str | None] = shutil.which) -> None:
    """Raises `TunnelBroken` where what forwards ports is not installed."""
    missing = [name for name in TUNNEL_PROGRAMS if find(name) is None]
    if missing:
        names = {"aws": "the AWS CLI (version 2)", "session-manager-plugin": "the Session Manager "
                 "plugin for it (session-manager-plugin)"}  # fmt: skip
        raise TunnelBroken(
            f"to reach the head, install {' and '.join(names[name] for name in missing)}, or make "
            "a tunnel of your own and give its --address"
        )


@contextmanager
def tunnel(
    command: list[str], *, local_port: int, timeout_s: float = OPEN_TIMEOUT_S
) -> Iterator[Way]:
    """Run what forwards ``local_port`` until the end. Raises `TunnelBroken` if it doesn't come."""
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # the plugin is its child; Ctrl-C comes to us alone
            )
        except OSError as error:
            raise TunnelBroken(f"cannot run {command[0]} ({error.strerror})") from error
        try:
            _wait_until_open(process, output, local_port, timeout_s)
            yield Way(f"http://{LOOPBACK}:{local_port}", lambda: _why_ended(process, output))
        finally:
            _stop(process)


def check_way(clients: AwsClients, card: ClusterCard, address: str | None) -> None:
    """Whether `serve_of` will find what it needs. Raises `ClusterError`."""
    if address is None:
        check_programs()
        head_instance(clients, card)


@contextmanager
def serve_of(clients: AwsClients, card: ClusterCard, address: str | None) -> Iterator[ServeApi]:
    """Serve's API through a tunnel, or as ``address`` says. Raises `ClusterError`."""
    token = ray_token(clients, card)
    if address is not None:
        yield ServeApi(address, token=token)
        return
    check_programs()
    local_port = free_port()
    command = tunnel_command(
        head_instance(clients, card),
        port=card.dashboard_port,
        local_port=local_port,
        region=card.region,
    )
    with tunnel(command, local_port=local_port) as way:
        yield ServeApi(way.address, token=token, why_ended=way.why_ended)


def _wait_until_open(
    process: subprocess.Popen[bytes], output: IO[bytes], local_port: int, timeout_s: float
) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not _accepts(local_port):
        reason = _why_ended(process, output)
        if reason is not None:
            raise TunnelBroken(f"the tunnel to the head can't be made ({reason})")
        if time.monotonic() > deadline_s:
            raise TunnelBroken(
                f"the tunnel to the head isn't open after {timeout_s:.0f} s ({_last_words(output)})"
            )
        time.sleep(_POLL_S)


def _accepts(port: int) -> bool:
    try:
        with socket.create_connection((LOOPBACK, port), timeout=1.0):
            return True
    except OSError:
        return False


def _why_ended(process: subprocess.Popen[bytes], output: IO[bytes]) -> str | None:
    return None if process.poll() is None else _last_words(output)


def _last_words(output: IO[bytes]) -> str:
    size = os.fstat(output.fileno()).st_size
    # The child writes by the same description: reading by position leaves its offset alone.
    tail = os.pread(output.fileno(), 4096, max(0, size - 4096))
    return reason_in(tail.decode("utf-8", "replace"))


def _stop(process: subprocess.Popen[bytes]) -> None:
    """The whole session, also what a child that has ended left behind."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            continue
    process.wait()
