import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import gguf
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, Gemma3TextConfig

from engine.checkpoints.errors import CheckpointError, CorruptCheckpoint, UnsupportedCheckpoint
from engine.checkpoints.gguf_convert import convert_gguf
from tests.damage import damages
from tests.unit.engine.checkpoints.conftest import make_tiny_model
from tests.unit.engine.checkpoints.llama_cpp_writer import TOKENS, write_model

if TYPE_CHECKING:
    from tests.unit.engine.checkpoints.conftest import TinyModel


METADATA = [
    *(f"llama.{key}" for key in (
        "block_count", "context_length", "embedding_length", "feed_forward_length",
        "attention.head_count", "attention.head_count_kv", "attention.key_length",
        "attention.value_length", "attention.layer_norm_rms_epsilon", "attention.sliding_window",
        "attention.scale", "rope.dimension_count", "rope.freq_base", "rope.scaling.type",
        "rope.scaling.factor", "rope.scale_linear", "expert_count", "logit_scale",
    )),
    *(f"tokenizer.ggml.{key}" for key in (
        "model", "pre", "merges", "bos_token_id", "eos_token_id", "eot_token_id", "add_bos_token",
        "unknown_token_id",
    )),
    "tokenizer.chat_template", "tokenizer.chat_templates", "general.sampling.temp",
    "general.sampling.top_k", "split.count", "split.no",
]  # fmt: skip


@pytest.fixture(scope="module")
def small_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A file of each kind of tokenizer."""
    folder = tmp_path_factory.mktemp("small")
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "head_dim": 4}
    config = Gemma3TextConfig(
        vocab_size=len(TOKENS), num_attention_heads=2, num_key_value_heads=1, **sizes
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    return {
        "smollm2": make_tiny_model().write(folder / "smollm2.gguf").read_bytes(),
        "gemma3": write_model(model, folder / "gemma3.gguf").read_bytes(),
    }


def convert(path: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "converted"
    folder.mkdir(exist_ok=True)
    convert_gguf(path, folder)
    return folder


def test_weights_come_back_in_hugging_face_order_rounded_as_torch_rounds(
    tiny_model: "TinyModel", tiny_gguf: Path, tmp_path: Path
) -> None:
    written = load_file(convert(tiny_gguf, tmp_path) / "model.safetensors")

    assert written.keys() == tiny_model.tensors.keys()
    for name, values in tiny_model.tensors.items():
        assert torch.equal(written[name], torch.from_numpy(values).to(torch.bfloat16)), name


def test_quantized_weights_are_dequantized(tiny_model: "TinyModel", tmp_path: Path) -> None:
    tiny_model.quantization = gguf.GGMLQuantizationType.Q4_1
    written = load_file(
        convert(tiny_model.write(tmp_path / "q.gguf"), tmp_path) / "model.safetensors"
    )

    name = "model.layers.0.mlp.up_proj.weight"
    packed = gguf.quantize(tiny_model.tensors[name], tiny_model.quantization)
    expected = torch.from_numpy(gguf.dequantize(packed, tiny_model.quantization))
    assert torch.equal(written[name], expected.to(torch.bfloat16))


def test_config_has_the_values_of_the_metadata(tiny_gguf: Path, tmp_path: Path) -> None:
    config = json.loads((convert(tiny_gguf, tmp_path) / "config.json").read_text())

    assert config["architectures"] == ["LlamaForCausalLM"]
    assert (config["num_attention_heads"], config["num_key_value_heads"]) == (4, 2)
    assert (config["head_dim"], config["hidden_size"], config["intermediate_size"]) == (8, 32, 64)
    assert (config["rope_theta"], config["rms_norm_eps"]) == (100000.0, 1e-05)
    assert (config["bos_token_id"], config["eos_token_id"]) == (1, 2)
    assert config["tie_word_embeddings"] is True


def test_an_output_matrix_of_its_own_is_kept(tiny_model: "TinyModel", tmp_path: Path) -> None:
    head = tiny_model.tensors["model.embed_tokens.weight"] + 1
    tiny_model.tensors["lm_head.weight"] = head
    folder = convert(tiny_model.write(tmp_path / "untied.gguf"), tmp_path)

    assert json.loads((folder / "config.json").read_text())["tie_word_embeddings"] is False
    written = load_file(folder / "model.safetensors")["lm_head.weight"]
    assert torch.equal(written, torch.from_numpy(head).to(torch.bfloat16))


def test_tokenizer_merges_splits_digits_and_keeps_special_tokens_whole(
    tiny_gguf: Path, tmp_path: Path
) -> None:
    tokenizer = Tokenizer.from_file(str(convert(tiny_gguf, tmp_path) / "tokenizer.json"))

    assert tokenizer.encode("he he12<|im_end|>").tokens == [
        "he", "Ġhe", "1", "2", "<|im_end|>",
    ]  # fmt: skip
    text = "héllo 🎉 你好"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert tokenizer.decode([2]) == ""


def test_a_model_that_wants_a_bos_token_gets_it(tiny_model: "TinyModel", tmp_path: Path) -> None:
    tiny_model.metadata["tokenizer.ggml.add_bos_token"] = True
    folder = convert(tiny_model.write(tmp_path / "bos.gguf"), tmp_path)

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.encode("he").tokens == ["<|im_start|>", "he"]


@pytest.mark.parametrize(
    ("metadata", "named"),
    [
        ({"tokenizer.ggml.pre": "poro-chat"}, "poro-chat"),
        ({"tokenizer.ggml.model": "t5"}, "t5"),
        ({"llama.rope.scaling.type": "longrope"}, "rotary"),
        ({"llama.expert_count": 8}, "mixture"),
        ({"llama.attention.scale": 0.5}, "scales its attention"),
        ({"llama.attention.causal": False}, "embeddings"),
        ({"llama.attention.value_length": 16}, "value_length"),
        ({"llama.rope.scaling.type": "yarn", "llama.rope.scaling.attn_factor": 0.5}, "attn_factor"),
        ({"llama.rope.dimension_count": 4}, "rotated"),
    ],
)
def test_what_would_be_computed_differently_is_refused(
    tiny_model: "TinyModel", tmp_path: Path, metadata: dict[str, object], named: str
) -> None:
    tiny_model.metadata |= metadata
    with pytest.raises(UnsupportedCheckpoint, match=named):
        convert(tiny_model.write(tmp_path / "other.gguf"), tmp_path)


@pytest.mark.parametrize(
    "metadata",
    [
        {"llama.block_count": 2**31 - 1},
        {"llama.block_count": 0},
        {"llama.attention.head_count": 2**31 - 1},
        {"llama.attention.head_count_kv": 3},
        {"llama.context_length": "long"},
        {"llama.rope.freq_base": float("nan")},
        {"llama.attention.layer_norm_rms_epsilon": None},
        {"tokenizer.ggml.eos_token_id": 10**6},
        {"tokenizer.ggml.merges": ["h e e"]},
        {"tokenizer.ggml.merges": ["zz yy"]},
        {"tokenizer.ggml.merges": None},
        {"llama.embedding_length": 64, "llama.rope.dimension_count": 16},
    ],
    ids=str,
)
def test_metadata_that_makes_no_sense_is_corrupt(
    tiny_model: "TinyModel", tmp_path: Path, metadata: dict[str, object]
) -> None:
    tiny_model.metadata |= metadata
    with pytest.raises(CorruptCheckpoint):
        convert(tiny_model.write(tmp_path / "bad.gguf"), tmp_path)


def test_a_duplicate_token_is_corrupt(tiny_model: "TinyModel", tmp_path: Path) -> None:
    tiny_model.tokens[5] = tiny_model.tokens[4]
    with pytest.raises(CorruptCheckpoint, match="different tokens"):
        convert(tiny_model.write(tmp_path / "bad.gguf"), tmp_path)


def test_a_weight_that_is_not_a_number_is_corrupt(tiny_model: "TinyModel", tmp_path: Path) -> None:
    tiny_model.tensors["model.norm.weight"][3] = np.nan
    with pytest.raises(CorruptCheckpoint, match="NaN"):
        convert(tiny_model.write(tmp_path / "bad.gguf"), tmp_path)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(share=st.floats(0, 1, exclude_max=True))
def test_a_truncated_file_is_corrupt(tiny_gguf: Path, tmp_path: Path, share: float) -> None:
    whole = tiny_gguf.read_bytes()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(CorruptCheckpoint):
        convert(cut, tmp_path)


@pytest.mark.parametrize("family", ["smollm2", "gemma3"])
@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_a_damaged_file_never_crashes_or_hangs(
    small_files: dict[str, bytes], tmp_path: Path, family: str, data: st.DataObject
) -> None:
    whole = small_files[family]
    damage = data.draw(damages(whole.index(b"token_embd.weight") + 400))
    path = tmp_path / "damaged.gguf"
    path.write_bytes(damage.to(whole))
    with suppress(CheckpointError):  # damage inside a text goes unnoticed: GGUF has no checksum
        convert(path, tmp_path)


@pytest.mark.parametrize("value", [[1, 2], ["a", "b"], "text", True, 2**31, -1.5, []], ids=str)
def test_metadata_of_a_wrong_type_is_a_clear_error(
    tiny_model: "TinyModel", tmp_path: Path, value: object
) -> None:
    for key in METADATA:
        tiny_model.metadata = {key: value}
        with suppress(CheckpointError):  # some values are right for some keys
            convert(tiny_model.write(tmp_path / "bad.gguf"), tmp_path)


def test_an_array_length_beyond_the_file_is_refused_at_once(tmp_path: Path) -> None:
    key = b"tokenizer.ggml.scores"
    header = b"GGUF" + (3).to_bytes(4, "little") + bytes(8) + (1).to_bytes(8, "little")
    entry = len(key).to_bytes(8, "little") + key + (9).to_bytes(4, "little")
    array = (6).to_bytes(4, "little") + (2**60).to_bytes(8, "little")
    path = tmp_path / "hostile.gguf"
    path.write_bytes(header + entry + array + bytes(64))
    with pytest.raises(CorruptCheckpoint, match="announced"):
        convert(path, tmp_path)
