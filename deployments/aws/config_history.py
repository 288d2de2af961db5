"""What is deployed and what was: files by their hash in the config bucket, and an SSM parameter
whose versions name them. Knows neither Serve nor what stands in a file.
"""

import hashlib
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from deployments.aws.aws_clients import AwsClients, aws_errors, error_code
from deployments.aws.cluster_card import ClusterCard, serve_config_parameter
from deployments.aws.errors import ConfigUnknown, DeployConflict

_FOLDER = "serve"
_SUFFIX = ".yaml"
_MAX_FILE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class ConfigVersion:
    """One state of the pointer."""

    version: int
    key: str
    """Of the file in the config bucket."""
    at: datetime
    who: str
    """Who moved the pointer, as AWS names them."""
    why: str
    """What they ran."""


class ConfigHistory:
    """Of one cluster. All methods raise `AwsRefused`."""

    def __init__(self, clients: AwsClients, card: ClusterCard) -> None:
        self._ssm = clients.ssm
        self._s3 = clients.s3
        self._bucket = card.config_bucket
        self._parameter = serve_config_parameter(card.name)

    def versions(self) -> list[ConfigVersion]:
        """Oldest first; none where nothing was deployed yet. AWS keeps 100."""
        with aws_errors(f"read the history of {self._parameter}"):
            try:
                pages = self._ssm.get_paginator("get_parameter_history")
                found = [
                    _version(entry)
                    for page in pages.paginate(Name=self._parameter)
                    for entry in page["Parameters"]
                ]
            except self._ssm.exceptions.ParameterNotFound:
                return []
        return sorted(found, key=lambda version: version.version)

    def current(self) -> ConfigVersion | None:
        """In force."""
        versions = self.versions()
        return versions[-1] if versions else None

    def pointer(self) -> ConfigVersion | None:
        """The same without who and why: all that a head may read."""
        with aws_errors(f"read {self._parameter}"):
            try:
                return _version(self._ssm.get_parameter(Name=self._parameter)["Parameter"])
            except self._ssm.exceptions.ParameterNotFound:
                return None

    def before(self, number: int | None) -> ConfigVersion:
        """Version ``number``; None: the last one that named another file than the one in force.

        Raises `ConfigUnknown`.
        """
        versions = self.versions()
        if not versions:
            raise ConfigUnknown("nothing has been deployed yet: headwater deploy FILE")
        if number is None:
            others = [each for each in versions if each.key != versions[-1].key]
            if not others:
                raise ConfigUnknown(
                    "only one file was ever deployed: there is nothing to go back to"
                )
            return others[-1]
        for version in versions:
            if version.version == number:
                return version
        raise ConfigUnknown(
            f"there is no version {number}: AWS has {versions[0].version} to "
            f"{versions[-1].version}, see headwater status"
        )

    def store(self, text: bytes) -> str:
        """Keep a file; its key, which is the same for the same text."""
        key = f"{_FOLDER}/{hashlib.sha256(text).hexdigest()}{_SUFFIX}"
        with aws_errors(f"write s3://{self._bucket}/{key}"):
            self._s3.put_object(
                Bucket=self._bucket, Key=key, Body=text, ContentType="application/yaml"
            )
        return key

    def read(self, version: ConfigVersion) -> bytes:
        """The file. Raises `ConfigUnknown` if it is gone or isn't what was stored."""
        from botocore.exceptions import ClientError

        where = f"s3://{self._bucket}/{version.key}"
        with aws_errors(f"read {where}"):
            try:
                answer = self._s3.get_object(Bucket=self._bucket, Key=version.key)
            except ClientError as error:
                if error_code(error) != "NoSuchKey":
                    raise
                raise ConfigUnknown(
                    f"{where} of version {version.version} is gone: deploy the file again"
                ) from error
            text: bytes = answer["Body"].read(_MAX_FILE_BYTES + 1)
        if hashlib.sha256(text).hexdigest() not in version.key:
            raise ConfigUnknown(
                f"{where} is not what was deployed, its sha256 is another: deploy the file again"
            )
        return text

    def point_at(self, key: str, *, after: ConfigVersion | None, why: str) -> int:
        """Put ``key`` in force; the new version.

        Raises `DeployConflict` if ``after`` was no longer the last.
        """
        with aws_errors(f"write {self._parameter}"):
            try:
                answer = self._ssm.put_parameter(
                    Name=self._parameter,
                    Value=key,
                    Type="String",
                    Overwrite=after is not None,
                    Description=why[:1024],
                )
            except self._ssm.exceptions.ParameterAlreadyExists as error:
                raise DeployConflict(_overtaken("another version")) from error
        version = int(answer["Version"])
        if after is not None and version != after.version + 1:
            raise DeployConflict(_overtaken(f"version {version - 1}"))
        return version


def _overtaken(what: str) -> str:
    return (
        f"somebody put {what} in force at the same moment: see headwater status, then deploy again "
        "what is wanted"
    )


def _version(entry: dict[str, Any]) -> ConfigVersion:
    return ConfigVersion(
        version=int(entry["Version"]),
        key=str(entry["Value"]),
        at=entry["LastModifiedDate"],
        who=str(entry.get("LastModifiedUser", "")),
        why=str(entry.get("Description", "")),
    )
