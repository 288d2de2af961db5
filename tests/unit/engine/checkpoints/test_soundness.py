"""Folders that were published broken or to do harm: pulling one is a clear error, never a crash."""

import os
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.checkpoints.errors import CheckpointError, CorruptCheckpoint, UnsupportedCheckpoint
from engine.checkpoints.pull import pull
from tests.checkpoint_hashes import verify
from tests.unit.engine.checkpoints.published import TEMPLATE, edit_json, publish, write_json

Damage = Callable[[Path], object]


@pytest.fixture
def published(tmp_path: Path) -> Path:
    return publish(tmp_path / "published", num_shards=2)


def test_a_published_folder_becomes_a_checkpoint(published: Path, tmp_path: Path) -> None:
    checkpoint = pull(str(published), home=tmp_path / "home")

    verify(checkpoint)
    assert checkpoint.chat_template == TEMPLATE
    assert checkpoint.eos_token_ids == (2,)
    assert checkpoint.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}
    assert checkpoint.sampling_defaults.temperature == 0.6
    assert [path.name for path in checkpoint.weights_paths] == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ]


def test_weights_that_the_index_does_not_name_are_left_out(published: Path, tmp_path: Path) -> None:
    (published / "extra.safetensors").write_bytes(struct.pack("<Q", 2) + b"{}")
    checkpoint = pull(str(published), home=tmp_path / "home")
    assert "extra.safetensors" not in checkpoint.manifest.files
    assert (published / "extra.safetensors").exists()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "config.json").write_text("nonsense"), "config.json"),
        (lambda folder: (folder / "config.json").write_text("[" * 10**6), "config.json"),
        (lambda folder: edit_json(folder / "config.json", hidden_size="32"), "hidden_size"),
        (lambda folder: edit_json(folder / "config.json", num_hidden_layers=10**12), "layers"),
        (lambda folder: edit_json(folder / "config.json", model_type="bert"), "'bert'"),
        (lambda folder: edit_json(folder / "config.json", eos_token_id=100), "vocabulary of 100"),
        (lambda folder: edit_json(folder / "config.json", eos_token_id="2"), "eos_token_id"),
        (lambda folder: edit_json(folder / "generation_config.json", top_p="1"), "top_p"),
        (lambda folder: edit_json(folder / "tokenizer_config.json", eos_token=[2]), "eos_token"),
        (lambda folder: edit_json(folder / "tokenizer_config.json", chat_template=2), "template"),
        (
            lambda folder: (folder / "tokenizer_config.json").write_bytes(b"\xff"),
            "tokenizer_config",
        ),
        (lambda folder: (folder / "tokenizer.json").write_text("{}"), "tokenizers library can use"),
        (
            lambda folder: (folder / "tokenizer.json").write_text("[" * 10**6),
            "tokenizers library can use",
        ),
        (lambda folder: os.truncate(folder / "tokenizer.json", 1 << 40), "more than 64 MiB"),
        (lambda folder: write_json(folder / "model.safetensors.index.json", []), "index"),
        (
            lambda folder: write_json(
                folder / "model.safetensors.index.json",
                {"weight_map": {"a": "model-00009-of-00009.safetensors"}},
            ),
            "names model-00009-of-00009.safetensors",
        ),
        (
            lambda folder: write_json(
                folder / "model.safetensors.index.json", {"weight_map": {"a": "../../secret"}}
            ),
            "names ../../secret",
        ),
        (
            lambda folder: os.truncate(folder / "model-00001-of-00002.safetensors", 100),
            "not a complete safetensors file",
        ),
    ],
)
def test_a_broken_file_is_named_and_leaves_nothing(
    published: Path, tmp_path: Path, damage: Damage, message: str
) -> None:
    damage(published)
    home = tmp_path / "home"
    with pytest.raises((CorruptCheckpoint, UnsupportedCheckpoint), match=message) as caught:
        pull(str(published), home=home)

    assert ".staging" not in str(caught.value)
    staging = home / "models" / ".staging" / "published"
    assert [path.name for path in staging.iterdir()] == ["lock"]
    assert not (home / "models" / "published").exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "!!!"}},  # panics loading
        {"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": ["a b"]}},  # does, too
        {
            "post_processor": {  # panics encoding
                "type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "X", "type_id": 0}}],
                "pair": [],
                "special_tokens": {},
            }
        },
        {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated"}},
        {"model": {"type": "Unigram", "vocab": [["a", 0.0]], "unk_id": None}},
    ],
)
def test_a_tokenizer_that_would_panic_in_a_gateway_is_refused(
    published: Path, tmp_path: Path, changes: dict[str, object]
) -> None:
    edit_json(published / "tokenizer.json", **changes)
    with pytest.raises(CorruptCheckpoint, match="tokenizers library can use"):
        pull(str(published), home=tmp_path / "home")


@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"]
)
@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_a_file_with_random_damage_gives_a_checkpoint_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, name: str, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    path = publish(folder / "published") / name
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, len(content)))
        length = data.draw(st.integers(0, 20))
        content[position : position + length] = data.draw(st.binary(max_size=8))
    path.write_bytes(content)
    with suppress(CheckpointError):
        verify(pull(str(path.parent), home=folder / "home"))
