"""Values from the process environment."""

import tempfile
from pathlib import Path

import pytest

from deployments.environment import (
    child_environment,
    headwater_home,
    instance_id,
    instance_metadata_url,
    ray_node_type,
    temporary_roots,
    traces_folder,
)


def test_home_is_the_variable_or_the_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWATER_HOME", "/srv/models")
    assert headwater_home() == Path("/srv/models")
    monkeypatch.delenv("HEADWATER_HOME")
    assert headwater_home() == Path.home() / ".cache" / "headwater"


def test_traces_lie_where_the_variable_says_or_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWATER_TRACES", "/srv/traces")
    assert traces_folder() == Path("/srv/traces")
    monkeypatch.setenv("HEADWATER_TRACES", "")
    assert traces_folder() is None


def test_an_instance_learns_about_itself_where_the_variable_says_or_where_ec2_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:1338")
    assert instance_metadata_url() == "http://127.0.0.1:1338"
    monkeypatch.delenv("AWS_EC2_METADATA_SERVICE_ENDPOINT")
    assert instance_metadata_url() == "http://169.254.169.254"


def test_a_node_has_the_instance_and_the_type_it_was_given_or_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RAY_CLOUD_INSTANCE_ID", "i-1")
    monkeypatch.setenv("RAY_NODE_TYPE_NAME", "h100")
    assert (instance_id(), ray_node_type()) == ("i-1", "h100")
    monkeypatch.delenv("RAY_CLOUD_INSTANCE_ID")
    monkeypatch.delenv("RAY_NODE_TYPE_NAME")
    assert (instance_id(), ray_node_type()) == (None, None)


def test_a_child_gets_the_environment_with_the_overrides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEPT", "1")
    monkeypatch.setenv("CHANGED", "1")
    child = child_environment({"CHANGED": "2"})
    assert (child["KEPT"], child["CHANGED"]) == ("1", "2")


def test_short_lived_folders_go_to_tmpdir_or_where_paths_are_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert temporary_roots() == (tmp_path, Path("/tmp"))
