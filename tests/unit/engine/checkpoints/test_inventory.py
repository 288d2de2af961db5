import os
import threading
from pathlib import Path

import pytest

from engine.checkpoints.errors import MissingCheckpoint
from engine.checkpoints.inventory import list_models, remove_model
from engine.checkpoints.pull import pull
from engine.checkpoints.staging import staged
from engine.checkpoints.store import checkpoint_path
from tests.unit.engine.checkpoints.published import publish


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    pull(str(publish(tmp_path / "b-model")), home=home)
    pull(str(publish(tmp_path / "a-model")), home=home)
    return home


def test_models_are_listed_by_name(home: Path, tmp_path: Path) -> None:
    first, second = list_models(home)
    assert (first.name, second.name) == ("a-model", "b-model")
    assert first.checkpoint is not None
    assert first.source == str(tmp_path / "a-model")
    assert first.num_bytes >= sum(entry.bytes for entry in first.checkpoint.manifest.files.values())


def test_a_store_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert list_models(tmp_path / "nowhere") == []


def test_a_damaged_model_is_listed_with_its_problem(home: Path) -> None:
    os.truncate(checkpoint_path(home, "a-model") / "config.json", 3)
    damaged, sound = list_models(home)
    assert damaged.checkpoint is None
    assert damaged.source is not None
    assert "config.json has 3 bytes" in (damaged.problem or "")
    assert sound.problem is None


def test_a_folder_without_manifest_is_listed_and_can_be_removed(home: Path) -> None:
    checkpoint_path(home, "c-model").mkdir()
    assert "no checkpoint" in (list_models(home)[2].problem or "")
    remove_model(home, "c-model")
    assert len(list_models(home)) == 2


def test_a_pull_that_was_not_finished_is_listed_and_can_be_removed(home: Path) -> None:
    with staged(home, "c-model") as staging:
        (staging.open_downloads("version") / "part").write_bytes(bytes(10_000))
    unfinished = list_models(home)[2]
    assert unfinished.num_bytes >= 10_000
    assert "broken off" in (unfinished.problem or "")
    remove_model(home, "c-model")
    assert len(list_models(home)) == 2


def test_a_removed_model_is_gone_and_its_source_is_not(home: Path, tmp_path: Path) -> None:
    remove_model(home, "a-model")
    assert [model.name for model in list_models(home)] == ["b-model"]
    assert (tmp_path / "a-model" / "model.safetensors").exists()


@pytest.mark.parametrize("name", ["c-model", "", ".", "..", ".staging", "../home", "a-model/"])
def test_an_unknown_name_is_refused_and_the_known_ones_are_said(home: Path, name: str) -> None:
    with pytest.raises(MissingCheckpoint, match="there are a-model, b-model"):
        remove_model(home, name)
    assert len(list_models(home)) == 2


def test_a_linked_folder_is_unlinked_not_emptied(home: Path, tmp_path: Path) -> None:
    other = publish(tmp_path / "other")
    checkpoint_path(home, "c-model").symlink_to(other)
    remove_model(home, "c-model")
    assert (other / "config.json").exists()
    assert not checkpoint_path(home, "c-model").exists()


def test_a_removal_waits_for_whoever_holds_the_name(home: Path) -> None:
    with staged(home, "a-model"):
        thread = threading.Thread(target=remove_model, args=(home, "a-model"))
        thread.start()
        thread.join(0.05)
        assert checkpoint_path(home, "a-model").exists()
    thread.join()
    assert not checkpoint_path(home, "a-model").exists()
