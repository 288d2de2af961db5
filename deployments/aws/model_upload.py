"""Brings the models of a file into the cluster's weights bucket, from where its nodes can read them
fast and without a way to the internet.

A model lies below its name and revision and is never replaced, so that an earlier file still finds
what it was deployed with.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from deployments.aws.aws_clients import aws_errors, error_code
from deployments.config import ModelArgs
from deployments.serve_file import ServeFile
from engine.checkpoints.manifest import MANIFEST_NAME, Manifest
from engine.checkpoints.pull import create_source, pull_from
from engine.weights.publish import publish

_ABSENT = frozenset({"NoSuchKey", "404"})


@dataclass(frozen=True, slots=True)
class Uploads:
    """To one bucket, by boto3's client of its region."""

    s3: Any
    bucket: str
    home: Path
    """Where this machine keeps models."""
    report: Callable[[str], None]

    def rewrite(self, file: ServeFile, document: dict[str, Any]) -> None:
        """Upload what isn't there, and let ``document``, the file's content, name the bucket.

        Raises `CheckpointError`, `AwsRefused`.
        """
        for model in file.models:
            if model.args.source.startswith(f"s3://{self.bucket}/"):
                continue
            target, revision = self._settle(model.args)
            position = model.path[-1]
            args = document["applications"][position]["args"]
            args["source"] = target
            args["weights_sha256"] = revision
            args.pop("source_sha256", None)  # of what the model was made of
            self.report(f"{model.args.name}: {target}")

    def _settle(self, args: ModelArgs) -> tuple[str, str]:
        """Where the model lies in the bucket, and its revision."""
        pinned = args.weights_sha256
        if pinned is not None and self._is_pinned_there(args, pinned.lower()):
            return self._target(args.name, pinned.lower()), pinned.lower()
        checkpoint = pull_from(
            create_source(args.source),
            name=args.name,
            home=self.home,
            sha256=args.source_sha256,
            weights_sha256=pinned,
        )
        revision, folder = checkpoint.revision, checkpoint.revision
        there = self._manifest(args.name, folder)
        if there is not None and _contents(there) != _contents(checkpoint.manifest):
            # The same weights with another tokenizer or template: beside, not over it.
            folder += f"-{_digest(checkpoint.manifest)}"
            there = self._manifest(args.name, folder)
        target = self._target(args.name, folder)
        if there is None:
            publish(args.name, target, home=self.home, connect=lambda: self.s3)
        return target, revision

    def _is_pinned_there(self, args: ModelArgs, revision: str) -> bool:
        """Only for a source that is pinned, too: else it may hold another tokenizer by now."""
        there = self._manifest(args.name, revision)
        return (
            there is not None
            and args.source_sha256 is not None
            and there.source == args.source
            and there.source_sha256 == args.source_sha256.lower()
            and there.weights_sha256 == revision
        )

    def _target(self, name: str, folder: str) -> str:
        return f"s3://{self.bucket}/{name}/{folder}"

    def _manifest(self, name: str, folder: str) -> Manifest | None:
        """None where it isn't, or can't be understood: it is written last, and then again."""
        from botocore.exceptions import ClientError

        key = f"{name}/{folder}/{MANIFEST_NAME}"
        with aws_errors(f"read s3://{self.bucket}/{key}"):
            try:
                body = self.s3.get_object(Bucket=self.bucket, Key=key)["Body"].read()
            except ClientError as error:
                if error_code(error) in _ABSENT:
                    return None
                raise
        try:
            return msgspec.json.decode(body, type=Manifest)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return None


def _contents(manifest: Manifest) -> dict[str, str]:
    return {name: entry.sha256 for name, entry in sorted(manifest.files.items())}


def _digest(manifest: Manifest) -> str:
    return hashlib.sha256(msgspec.json.encode(_contents(manifest))).hexdigest()[:12]
