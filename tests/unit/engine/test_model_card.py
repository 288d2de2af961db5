"""What gateways are told of a model, above all the root of its block keys."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from cache_tiers.rung import Rung
from engine.checkpoints.manifest import build_manifest, write_manifest
from engine.checkpoints.store import open_checkpoint
from engine.config import EngineConfig, EngineSpec
from engine.messages import LoadView, ModelCard
from engine.model_card import make_model_card
from engine.rank_messages import Ready


def card_of(folder: Path, *, config: dict[str, object], dtype: str = "bfloat16") -> ModelCard:
    """Of a checkpoint with always the same weights."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    save_file({"weight": np.zeros(4, np.float32)}, folder / "model.safetensors")
    write_manifest(folder, build_manifest(folder, source="test", source_sha256="", source_stamp=""))
    checkpoint = open_checkpoint(folder)
    ready = Ready(
        num_blocks=8,
        max_model_len=256,
        max_request_tokens=128,
        vocab_size=100,
        weights_revision=checkpoint.revision,
        load=LoadView(),
        load_time_s=1.0,
        warm_up_time_s=1.0,
    )
    spec = EngineSpec(
        model="m",
        checkpoint=folder,
        config=EngineConfig.model_validate({"dtype": dtype}),
        started_from=Rung.STAGED,
    )
    return make_model_card(spec, checkpoint, ready, engine_id="e", start_s=2.5)


def test_block_keys_start_alike_for_the_same_model_and_only_then(tmp_path: Path) -> None:
    plain = card_of(tmp_path / "a", config={"rope_theta": 1e4})
    again = card_of(tmp_path / "b", config={"rope_theta": 1e4})
    assert again.root_key == plain.root_key
    stretched = card_of(tmp_path / "c", config={"rope_theta": 1e6})
    assert stretched.weights_revision == plain.weights_revision
    exact = card_of(tmp_path / "d", config={"rope_theta": 1e4}, dtype="float32")
    assert len({plain.root_key, stretched.root_key, exact.root_key}) == 3


def test_end_tokens_that_the_model_lacks_are_left_out(tmp_path: Path) -> None:
    card = card_of(tmp_path / "a", config={"eos_token_id": [7, 100]})
    assert card.eos_token_ids == [7]


def test_where_a_start_began_and_what_it_took_are_told(tmp_path: Path) -> None:
    card = card_of(tmp_path / "a", config={})
    assert (card.started_from, card.start_s) == (Rung.STAGED, 2.5)
