"""Tokenizers rebuilt from metadata alone: both kinds, against slow twins and known splits."""

import json
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFWriter
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel
from transformers import AutoTokenizer

from engine.checkpoints.errors import CorruptCheckpoint, UnsupportedCheckpoint
from engine.checkpoints.gguf_file import GgufFile
from engine.checkpoints.gguf_tokenizer import write_tokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


@dataclass
class Vocabulary:
    """A tokenizer's metadata; ``build`` writes it into a GGUF file and converts that."""

    tokens: list[str]
    kinds: list[int]
    entries: dict[str, Any]
    scores: list[float] | None = None
    folder: Path = field(default=Path())

    def build(self, tmp_path: Path) -> Tokenizer:
        path = tmp_path / "tokenizer.gguf"
        writer = GGUFWriter(path, "llama")
        writer.add_array("tokenizer.ggml.tokens", self.tokens)
        writer.add_array("tokenizer.ggml.token_type", self.kinds)
        if self.scores is not None:
            writer.add_array("tokenizer.ggml.scores", self.scores)
        for key, value in self.entries.items():
            match value:
                case bool():
                    writer.add_bool(key, value)
                case int():
                    writer.add_uint32(key, value)
                case str():
                    writer.add_string(key, value)
                case _:
                    writer.add_array(key, value)
        writer.add_tensor("token_embd.weight", np.zeros((len(self.tokens), 4), np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        self.folder = tmp_path / "tokenizer"
        self.folder.mkdir(exist_ok=True)
        write_tokenizer(GgufFile.open(path), self.folder, context_len=64)
        return Tokenizer.from_file(str(self.folder / "tokenizer.json"))


PIECES = ["▁", "a", "b", "n", "▁a", "an", "▁b", "na", "ana", "ban", "▁ban", "ann", "▁▁a", "é"]
INNER = ["  ", "   ", "\n", "\n\n", "<b>"]


def sentencepiece(*, prefix: bool, inner: list[str]) -> Vocabulary:
    """Llama's with its spaces put first, Gemma's with user-defined pieces."""
    tokens = ["<unk>", "<s>", "</s>", *inner, *(f"<0x{byte:02X}>" for byte in range(256)), *PIECES]
    kinds = [UNKNOWN, CONTROL, CONTROL]
    kinds += [USER_DEFINED] * len(inner) + [BYTE] * 256 + [NORMAL] * len(PIECES)
    random = np.random.default_rng(11)
    scores = [-1000.0] * (len(tokens) - len(PIECES))
    scores += [-float(rank) for rank in random.permutation(len(PIECES))]
    entries = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_space_prefix": prefix,
    }
    return Vocabulary(tokens, kinds, entries, scores)


def slow_sentencepiece(vocabulary: Vocabulary, text: str, *, prefix: bool) -> list[str]:
    """SentencePiece's BPE as its paper tells it: cut out user-defined pieces, longest first, then
    merge the best neighbours, leftmost first, until none are left.
    """
    assert vocabulary.scores is not None
    text = ("▁" if prefix and text else "") + text.replace(" ", "▁")
    scores = dict(zip(vocabulary.tokens, vocabulary.scores, strict=True))
    scores = {token: score for token, score in scores.items() if token in PIECES}
    fixed = sorted((token.replace(" ", "▁") for token in INNER), key=len, reverse=True)
    fixed = [token for token in fixed if token.replace("▁", " ") in vocabulary.tokens]
    symbols: list[str] = []
    while text:
        symbols.append(next((piece for piece in fixed if text.startswith(piece)), text[0]))
        text = text[len(symbols[-1]) :]
    while True:
        pairs = [
            (-scores[left + right], index)
            for index, (left, right) in enumerate(pairwise(symbols))
            if left + right in scores and not {left, right} & set(fixed)
        ]
        if not pairs:
            break
        _, index = min(pairs)
        symbols[index : index + 2] = [symbols[index] + symbols[index + 1]]
    known = {*scores, *fixed}
    return [
        token
        for symbol in symbols
        for token in (
            [symbol] if symbol in known else [f"<0x{byte:02X}>" for byte in symbol.encode()]
        )
    ]


@pytest.mark.parametrize(("prefix", "inner"), [(True, []), (False, INNER)])
@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_sentencepiece_text_is_cut_as_its_algorithm_says(
    tmp_path: Path, prefix: bool, inner: list[str], data: st.DataObject
) -> None:
    vocabulary = sentencepiece(prefix=prefix, inner=inner)
    tokenizer = BUILT.get(prefix) or BUILT.setdefault(prefix, vocabulary.build(tmp_path))
    alphabet = st.sampled_from(["a", "b", "n", " ", "é", "漢", "<b>" if inner else "x"])
    text = "".join(data.draw(st.lists(alphabet, max_size=24)))

    encoding = tokenizer.encode(text)
    expected = slow_sentencepiece(vocabulary, text, prefix=prefix)
    assert encoding.tokens == ["<s>", *expected]
    assert tokenizer.decode(encoding.ids) == text


BUILT: dict[bool, Tokenizer] = {}


def test_newlines_are_cut_out_and_control_tokens_never_merged(tmp_path: Path) -> None:
    tokenizer = sentencepiece(prefix=False, inner=INNER).build(tmp_path)
    assert tokenizer.encode("a\n\n\na</s>", add_special_tokens=False).tokens == [
        "a", "\n\n", "\n", "a", "</s>",
    ]  # fmt: skip
    tokenizer.encode_special_tokens = True
    assert "</s>" not in tokenizer.encode("a</s>").tokens


@pytest.mark.parametrize("has_instruction_token", [False, True])
def test_a_space_follows_special_tokens_as_in_the_models_own_tokenizer(
    tmp_path: Path, has_instruction_token: bool
) -> None:
    vocabulary = sentencepiece(prefix=True, inner=[])
    if has_instruction_token:  # Mistral since its third version
        vocabulary.tokens[10], vocabulary.kinds[10] = "[INST]", CONTROL
    tokenizer = vocabulary.build(tmp_path)
    expected = ["<s>", "▁a", "</s>", "an" if has_instruction_token else "▁a"]
    expected += [] if has_instruction_token else ["n"]
    assert tokenizer.encode("a</s>an").tokens == expected
    once_more = [] if has_instruction_token else ["▁"]
    assert tokenizer.encode(" b").tokens[1:] == [*once_more, "▁b"]


def byte_level(pre: str, **entries: Any) -> Vocabulary:
    tokens = ["<|end|>", *sorted(ByteLevel.alphabet()), "he", "hello", "Ġhe"]
    kinds = [CONTROL] + [NORMAL] * (len(tokens) - 1)
    known = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.merges": ["h e", "Ġ he"],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 0,
    }
    return Vocabulary(tokens, kinds, known | entries)


TEXT = "I'LL don't 12345 XMLHttp\n\n  x==y/z"
SPLITS = {
    "gpt-2": "I|'|LL|Ġdon|'t|Ġ12345|ĠXMLHttp|ĊĊĠ|Ġx|==|y|/|z",
    "smollm": "I|'|LL|Ġdon|'t|Ġ|1|2|3|4|5|ĠXMLHttp|ĊĊĠ|Ġx|==|y|/|z",
    "llama-bpe": "I|'LL|Ġdon|'t|Ġ|123|45|ĠXMLHttp|ĊĊ|Ġ|Ġx|==|y|/z",
    "qwen2": "I|'LL|Ġdon|'t|Ġ|1|2|3|4|5|ĠXMLHttp|ĊĊ|Ġ|Ġx|==|y|/z",
    "seed-coder": "I|'LL|Ġdon|'t|Ġ|1|2|3|4|5|ĠXMLHttp|ĊĊ|Ġ|Ġx|==|y|/z",
    "tekken": "I|'LL|Ġdon|'t|Ġ|1|2|3|4|5|ĠXMLHttp|ĊĊ|Ġ|Ġx|==|y|/z",
    "gpt-4o": "I'LL|Ġdon't|Ġ|123|45|ĠXMLHttp|ĊĊ|Ġ|Ġx|==|y|/z",
    "deepseek-coder": "I|'|LL|Ġdon|'|t|Ġ|1|2|3|4|5|ĠXMLHttp|Ċ|Ċ|Ġ|Ġx|==|y|/|z",
    "deepseek-v3": "I|'LL|Ġdon|'t|Ġ|123|45|ĠXMLHttp|ĊĊ|Ġ|Ġx|==|y|/z",
}


@pytest.mark.parametrize("pre", SPLITS)
def test_text_is_split_as_the_name_says(tmp_path: Path, pre: str) -> None:
    tokenizer = byte_level(pre).build(tmp_path)
    pieces = [piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(TEXT)]
    assert "|".join(pieces) == SPLITS[pre]
    for text in (TEXT, "héllo 🎉👩‍👩‍👧 你好", "\t\r\n \u00a0"):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_camel_case_is_split_only_where_the_model_was_trained_so(tmp_path: Path) -> None:
    text = "parseXMLNow"
    for pre, expected in {"tekken": ["parse", "XMLNow"], "llama-bpe": ["parseXMLNow"]}.items():
        tokenizer = byte_level(pre).build(tmp_path)
        pieces = tokenizer.pre_tokenizer.pre_tokenize_str(text)
        assert [piece for piece, _ in pieces] == expected


@pytest.mark.parametrize(
    ("pre", "tokens"), [("llama-bpe", ["hello"]), ("qwen2", ["he", "l", "l", "o"])]
)
def test_llama_3_takes_a_word_that_is_a_token_without_merging(
    tmp_path: Path, pre: str, tokens: list[str]
) -> None:
    tokenizer = byte_level(pre).build(tmp_path)
    assert tokenizer.encode("hello", add_special_tokens=False).tokens == tokens


def test_qwen_composes_accents_first(tmp_path: Path) -> None:
    tokenizer = byte_level("qwen2").build(tmp_path)
    assert tokenizer.encode("e\u0301").ids == tokenizer.encode("é").ids
    raw = byte_level("deepseek-r1-qwen").build(tmp_path)
    assert raw.encode("e\u0301").ids != raw.encode("é").ids


@pytest.mark.parametrize(
    ("pre", "entries", "expected"),
    [
        ("llama-bpe", {}, ["<|end|>", "he"]),
        ("llama-bpe", {"tokenizer.ggml.add_bos_token": False}, ["he"]),
        ("qwen2", {}, ["he"]),
        ("qwen2", {"tokenizer.ggml.add_bos_token": True}, ["<|end|>", "he"]),
        ("qwen2", {"tokenizer.ggml.add_eos_token": True}, ["he", "<|end|>"]),
    ],
)
def test_text_begins_and_ends_as_the_file_says_or_its_kind_does(
    tmp_path: Path, pre: str, entries: dict[str, Any], expected: list[str]
) -> None:
    assert byte_level(pre, **entries).build(tmp_path).encode("he").tokens == expected


def test_padding_of_the_vocabulary_is_no_text(tmp_path: Path) -> None:
    vocabulary = byte_level("qwen2")
    vocabulary.tokens += ["[PAD260]", "[PAD261]"]
    vocabulary.kinds += [UNUSED, UNUSED]
    tokenizer = vocabulary.build(tmp_path)
    assert tokenizer.get_vocab_size() == len(vocabulary.tokens) - 2
    assert tokenizer.token_to_id("[PAD260]") is None


def test_named_templates_stand_beside_the_default_one(tmp_path: Path) -> None:
    vocabulary = byte_level(
        "qwen2",
        **{
            "tokenizer.chat_template": "plain",
            "tokenizer.chat_templates": ["tool_use", "gone"],
            "tokenizer.chat_template.tool_use": "with tools",
        },
    )
    vocabulary.build(tmp_path)
    assert (vocabulary.folder / "chat_template.jinja").read_text() == "plain"
    config = json.loads((vocabulary.folder / "tokenizer_config.json").read_text())
    assert config["chat_template"] == [
        {"name": "default", "template": "plain"},
        {"name": "tool_use", "template": "with tools"},
    ]
    assert AutoTokenizer.from_pretrained(vocabulary.folder).get_chat_template() == "plain"


@pytest.mark.parametrize("model", ["t5", "bert", "rwkv"])
def test_a_tokenizer_of_another_kind_is_refused_by_name(tmp_path: Path, model: str) -> None:
    with pytest.raises(UnsupportedCheckpoint, match=f"tokenizer '{model}'; only"):
        byte_level("qwen2", **{"tokenizer.ggml.model": model}).build(tmp_path)


def test_an_unknown_split_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedCheckpoint, match="'default'; of byte-level"):
        byte_level("default").build(tmp_path)


@pytest.mark.parametrize(
    ("field_name", "value"),
    [
        ("kinds", [NORMAL] * 3),
        ("kinds", [9] * 273),
        ("kinds", ["normal"] * 273),
        ("scores", None),
        ("scores", [0.0] * 5),
        ("scores", [float("nan")] * 273),
        ("tokens", ["same"] * 273),
        ("tokens", [7] * 273),
        ("tokens", ["a" * 300, *(f"t{number}" for number in range(272))]),
    ],
)
def test_a_vocabulary_that_does_not_fit_together_is_corrupt(
    tmp_path: Path, field_name: str, value: Any
) -> None:
    vocabulary = sentencepiece(prefix=True, inner=[])
    assert len(vocabulary.tokens) == 273
    if field_name == "tokens":
        vocabulary.kinds = [NORMAL] * 273
    setattr(vocabulary, field_name, value)
    with pytest.raises(CorruptCheckpoint):
        vocabulary.build(tmp_path)
