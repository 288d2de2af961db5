"""boto3's clients for one cluster, and its many errors as one line.

Region, profile and credentials are boto3's own business (its environment and files).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from deployments.aws.errors import AwsRefused

_CONNECT_TIMEOUT_S = 10.0
_READ_TIMEOUT_S = 60.0
_MAX_CONNECTIONS = 32
"""What uploads use side by side."""

_LOG_IN = "log in again (aws sso login, or new keys)"
_REMEDIES = {
    "ExpiredToken": f"the credentials have expired: {_LOG_IN}",
    "ExpiredTokenException": f"the credentials have expired: {_LOG_IN}",
    "RequestExpired": f"the credentials have expired, or this machine's clock is wrong: {_LOG_IN}",
    "UnrecognizedClientException": f"AWS doesn't know the credentials: {_LOG_IN}",
    "InvalidClientTokenId": f"AWS doesn't know the credentials: {_LOG_IN}",
    "InvalidAccessKeyId": f"AWS doesn't know the credentials: {_LOG_IN}",
    "InvalidSignatureException": f"the secret key doesn't fit the key's id: {_LOG_IN}",
    "SignatureDoesNotMatch": f"the secret key doesn't fit the key's id: {_LOG_IN}",
    "AuthFailure": f"AWS doesn't know the credentials: {_LOG_IN}",
    "NoSuchBucket": "the bucket doesn't exist: the card is older than the cluster, apply Terraform",
}
_DENIED = frozenset({"AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "403"})


@dataclass(frozen=True, slots=True)
class AwsClients:
    """Of one region."""

    region: str
    ssm: Any
    s3: Any
    secrets: Any
    ec2: Any
    autoscaling: Any


def aws_clients(region: str | None) -> AwsClients:
    """``region`` None: boto3's own default. Raises `AwsRefused` where there is none."""
    import boto3
    from botocore.config import Config

    config = Config(
        connect_timeout=_CONNECT_TIMEOUT_S,
        read_timeout=_READ_TIMEOUT_S,
        max_pool_connections=_MAX_CONNECTIONS,
    )
    with aws_errors("choose a region"):
        session = boto3.session.Session(region_name=region)
        found = session.region_name
        if found is None:
            raise AwsRefused("no region is chosen: give --region, or set AWS_REGION")
        names = ("ssm", "s3", "secretsmanager", "ec2", "autoscaling")
        return AwsClients(str(found), *(session.client(name, config=config) for name in names))


@contextmanager
def aws_errors(doing: str) -> Iterator[None]:
    """Raises `AwsRefused` for whatever boto3 raises; ``doing`` follows "cannot"."""
    from boto3.exceptions import Boto3Error
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except ClientError as error:
        raise AwsRefused(f"cannot {doing}: {_refusal(error)}") from error
    except (BotoCoreError, Boto3Error) as error:
        raise AwsRefused(f"cannot {doing}: {_failure(error)}") from error


def error_code(error: Exception) -> str:
    """AWS's own, of a ``ClientError``."""
    response: dict[str, Any] = getattr(error, "response", {})
    return str(response.get("Error", {}).get("Code", ""))


def _refusal(error: Exception) -> str:
    code = error_code(error)
    if code in _REMEDIES:
        return _REMEDIES[code]
    words = " ".join(str(error).split())
    if code in _DENIED:
        return f"access is denied ({words}): ask for the permission, or use another profile"
    return words


def _failure(error: Exception) -> str:
    from botocore.exceptions import (
        ConnectionError,  # noqa: A004  boto3's name
        CredentialRetrievalError,
        HTTPClientError,
        NoCredentialsError,
        PartialCredentialsError,
        ProfileNotFound,
        SSOError,
    )

    words = " ".join(str(error).split())
    if isinstance(error, NoCredentialsError | PartialCredentialsError):
        return (
            "there are no AWS credentials: run aws configure or aws sso login, or set AWS_PROFILE"
        )
    if isinstance(error, CredentialRetrievalError | SSOError):
        return f"the AWS credentials can't be had ({words}): {_LOG_IN}"
    if isinstance(error, ProfileNotFound):
        return f"{words}: correct AWS_PROFILE"
    if isinstance(error, ConnectionError | HTTPClientError):
        return f"AWS can't be reached ({words}): check the network and the region"
    return words
