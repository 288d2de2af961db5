"""The only module that reads the process environment; all others get values as arguments.

| variable                            | meaning                            | default              |
|-------------------------------------|------------------------------------|----------------------|
| `AWS_EC2_METADATA_SERVICE_ENDPOINT` | what tells an instance of itself   | EC2's own            |
| `HEADWATER_HOME`                    | where models are kept              | `~/.cache/headwater` |
| `HEADWATER_TRACES`                  | where public traces lie            | none                 |
| `RAY_ADDRESS`                       | the cluster of Ray's own tools     | none                 |
| `RAY_CLOUD_INSTANCE_ID`             | the instance this node runs on     | none                 |
| `RAY_NODE_TYPE_NAME`                | the autoscaler's kind of node      | none                 |
| `TMPDIR`                            | where short-lived folders are made | `/tmp`               |
"""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

DEFAULT_HOME = "~/.cache/headwater"
INSTANCE_METADATA_URL = "http://169.254.169.254"
"""The same on every EC2 instance."""
SHORTEST_TEMPORARY_ROOT = Path("/tmp")  # noqa: S108  only ever the parent of a 0700 folder


def headwater_home() -> Path:
    """Where models are kept on this node."""
    return Path(os.environ.get("HEADWATER_HOME") or DEFAULT_HOME).expanduser().resolve()


def traces_folder() -> Path | None:
    """Where public traces lie that benchmarks replay."""
    folder = os.environ.get("HEADWATER_TRACES")
    return Path(folder).expanduser().resolve() if folder else None


def ray_address() -> str | None:
    """The running cluster that Ray's tools would connect to by themselves."""
    return os.environ.get("RAY_ADDRESS") or None


def instance_metadata_url() -> str:
    """Where an EC2 instance learns about itself."""
    return os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or INSTANCE_METADATA_URL


def instance_id() -> str | None:
    """The cloud's instance that this node runs on."""
    return os.environ.get("RAY_CLOUD_INSTANCE_ID") or None


def ray_node_type() -> str | None:
    """What Ray's autoscaler calls nodes like this one."""
    return os.environ.get("RAY_NODE_TYPE_NAME") or None


def child_environment(overrides: Mapping[str, str]) -> dict[str, str]:
    """This process's environment with `overrides`, for a child."""
    return {**os.environ, **overrides}


def temporary_roots() -> tuple[Path, Path]:
    """Where short-lived folders may be made: first choice, and the one with the shortest path."""
    return Path(tempfile.gettempdir()), SHORTEST_TEMPORARY_ROOT
