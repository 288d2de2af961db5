"""Rebuilds tokenizer.json, tokenizer_config.json and the chat templates from a GGUF file's
tokenizer.

Byte-level BPE and SentencePiece BPE; others are refused by name.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec
from tokenizers import AddedToken, Tokenizer, processors

from engine.checkpoints.errors import CheckpointError, CorruptCheckpoint, UnsupportedCheckpoint
from engine.checkpoints.gguf_byte_level import adds_bos_by_default, byte_level_tokenizer
from engine.checkpoints.gguf_file import GgufFile
from engine.checkpoints.gguf_metadata import flag, strings, text, token_id, vocab_size
from engine.checkpoints.gguf_sentencepiece import SPACE, sentencepiece_tokenizer
from engine.checkpoints.gguf_token_types import (
    CONTROL,
    UNKNOWN,
    USER_DEFINED,
    num_in_use,
    token_types,
)

_BYTE_LEVEL, _SENTENCEPIECE = "gpt2", "llama"
_MAX_ADDED_TOKENS = 1 << 16  # Gemma 3 has 6,414; the matcher of all takes memory for each
_ADDED_KINDS = (CONTROL, UNKNOWN, USER_DEFINED)
_SPECIAL_TOKEN_KINDS = {
    "bos_token": "bos",
    "eos_token": "eos",
    "unk_token": "unknown",
    "pad_token": "padding",
}


def write_tokenizer(file: GgufFile, folder: Path, *, context_len: int) -> None:
    """Write the tokenizer's files, and chat_template.jinja if the model has one."""
    tokens = strings(file, "tokenizer.ggml.tokens")
    _build_tokenizer(file, tokens).save(str(folder / "tokenizer.json"))
    config: dict[str, object] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context_len,
        "clean_up_tokenization_spaces": False,
    }
    for name, kind in _SPECIAL_TOKEN_KINDS.items():
        number = token_id(file, kind)
        if number is not None:
            config[name] = tokens[number]
    template = text(file, "tokenizer.chat_template")
    if template is not None:
        config["chat_template"] = template
        (folder / "chat_template.jinja").write_text(template, "utf-8", newline="\n")
    named = _named_templates(file)
    if named:
        default = [] if template is None else [{"name": "default", "template": template}]
        config["chat_template"] = default + named
    encoded = msgspec.json.format(msgspec.json.encode(config), indent=2)
    (folder / "tokenizer_config.json").write_bytes(encoded + b"\n")


def _build_tokenizer(file: GgufFile, tokens: list[str]) -> Tokenizer:
    model = text(file, "tokenizer.ggml.model")
    if model not in (_BYTE_LEVEL, _SENTENCEPIECE):
        raise UnsupportedCheckpoint(
            f"{file.path} has a tokenizer {str(model)[:40]!r}; only byte-level BPE "
            f"({_BYTE_LEVEL!r}) and SentencePiece BPE ({_SENTENCEPIECE!r}) are understood. Pull a "
            "safetensors folder instead."
        )
    kinds = token_types(file, len(tokens))
    if model == _SENTENCEPIECE:  # user-defined tokens stand there with the text's own spaces
        tokens = [
            token.replace(" ", SPACE) if kind == USER_DEFINED else token
            for token, kind in zip(tokens, kinds, strict=True)
        ]
    num_rows = vocab_size(file)
    if len(tokens) != num_rows or len(set(tokens)) != num_rows:
        raise CorruptCheckpoint(
            f"{file.path} has {len(set(tokens))} different tokens for {num_rows} rows of "
            "embeddings. Download the file again."
        )
    num_added = sum(kind in _ADDED_KINDS for kind in kinds)
    if num_added > _MAX_ADDED_TOKENS:
        raise CorruptCheckpoint(
            f"{file.path} has {num_added} special tokens, which makes no sense. Download it again."
        )
    used = num_in_use(kinds)
    vocabulary = {token: number for number, token in enumerate(tokens[:used])}
    try:
        if model == _SENTENCEPIECE:
            tokenizer = sentencepiece_tokenizer(file, vocabulary, kinds)
            adds_bos = True
        else:
            tokenizer = byte_level_tokenizer(file, vocabulary)
            adds_bos = adds_bos_by_default(file)
        processor = _processor(file, tokens, adds_bos=adds_bos)
        if processor is not None:
            tokenizer.post_processor = processor
        _add_special_tokens(tokenizer, tokens[:used], kinds[:used])
    except (CheckpointError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the Rust library raises nothing narrower, and may panic
        raise CorruptCheckpoint(
            f"{file.path}: its tokenizer does not fit together ({error}). Download the file again."
        ) from error
    return tokenizer


def _processor(
    file: GgufFile, tokens: list[str], *, adds_bos: bool
) -> processors.PostProcessor | None:
    """Puts the BOS and EOS tokens around every text, for models that were trained so."""
    ends = (("bos", adds_bos), ("eos", False))
    found = {}
    for kind, default in ends:
        number = token_id(file, kind)
        if flag(file, f"tokenizer.ggml.add_{kind}_token", default=default) and number is not None:
            found[kind] = (tokens[number], number)
    if not found:
        return None
    before = [found["bos"][0]] if "bos" in found else []
    after = [found["eos"][0]] if "eos" in found else []
    return processors.TemplateProcessing(
        single=[*before, "$A", *after], special_tokens=sorted(set(found.values()))
    )


def _add_special_tokens(tokenizer: Tokenizer, tokens: list[str], kinds: Sequence[int]) -> None:
    special, ordinary = [], []
    for token, kind in zip(tokens, kinds, strict=True):
        if kind in (CONTROL, UNKNOWN):
            special.append(AddedToken(token, special=True, normalized=False))
        elif kind == USER_DEFINED:
            ordinary.append(AddedToken(token, special=False, normalized=False))
    # All at once: the library rebuilds its matcher at each call.
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens(ordinary)


def _named_templates(file: GgufFile) -> list[dict[str, str]]:
    """Templates beside the default one, such as that for tools."""
    key = "tokenizer.chat_templates"
    names = strings(file, key) if key in file.metadata else []
    found = [(name, text(file, f"tokenizer.chat_template.{name}")) for name in names]
    return [
        {"name": name, "template": template} for name, template in found if template is not None
    ]
