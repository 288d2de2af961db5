"""moto's server on loopback with a model in it, in a process of its own.

It is a complete imitation of S3, and therefore slow: for a model of some hundred megabytes.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import boto3

from benchmarks.object_store import BUCKET
from benchmarks.result import ResultError

_HOST = "127.0.0.1"
_START_S = 60.0
_SIGNED_S = 3600

Sign = Callable[[str], str]
"""The URL of a file of the model, which anybody may read for a while."""


@contextmanager
def moto_store(folder: Path) -> Iterator[tuple[str, Sign]]:
    """Its endpoint; the files of ``folder`` are the objects below ``model/``."""
    port = _free_port()
    command = [sys.executable, "-m", "moto.server", "-H", _HOST, "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_for(port)
        url = f"http://{_HOST}:{port}"
        client = boto3.session.Session().client(
            "s3",
            endpoint_url=url,
            region_name="us-east-1",
            aws_access_key_id="none",
            aws_secret_access_key="none",  # noqa: S106  it asks for none in particular
        )
        client.create_bucket(Bucket=BUCKET)
        for path in folder.iterdir():
            client.upload_file(str(path), BUCKET, f"model/{path.name}")

        def sign(name: str) -> str:
            params = {"Bucket": BUCKET, "Key": f"model/{name}"}
            signed: str = client.generate_presigned_url(
                "get_object", Params=params, ExpiresIn=_SIGNED_S
            )
            return signed

        yield url, sign
    finally:
        process.kill()
        process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        port: int = probe.getsockname()[1]
    return port


def _wait_for(port: int) -> None:
    deadline_s = time.monotonic() + _START_S
    while time.monotonic() < deadline_s:
        try:
            socket.create_connection((_HOST, port), timeout=1.0).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise ResultError(f"moto's server did not start within {_START_S:g} s")
