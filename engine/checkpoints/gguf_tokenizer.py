"""Rebuilds tokenizer.json, tokenizer_config.json and the chat template from a GGUF file's
tokenizer.

Byte-level BPE only, with the pre-tokenizers listed here: an unknown one is refused, since a guess
would split text otherwise than the model was trained on and only make it slightly worse, which
nobody would notice.
"""

from pathlib import Path

import msgspec
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from engine.checkpoints.errors import CorruptCheckpoint, UnsupportedCheckpoint
from engine.checkpoints.gguf_config import special_token_id
from engine.checkpoints.gguf_file import GgufFile

_CONTROL, _USER_DEFINED = 3, 4  # values of tokenizer.ggml.token_type
_SPECIAL_TOKEN_KINDS = {
    "bos_token": "bos",
    "eos_token": "eos",
    "unk_token": "unknown",
    "pad_token": "padding",
}


def _gpt2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _single_digits() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


_PRE_TOKENIZERS = {
    "gpt-2": _gpt2,
    "smollm": _single_digits,
    "starcoder": _single_digits,
    "refact": _single_digits,
}
"""By tokenizer.ggml.pre; llama.cpp splits each of these by the same expressions."""


def write_tokenizer(file: GgufFile, folder: Path, *, context_len: int) -> None:
    """Write the tokenizer's files, and chat_template.jinja if the model has one."""
    tokens = _strings(file, "tokenizer.ggml.tokens")
    _build_tokenizer(file, tokens).save(str(folder / "tokenizer.json"))
    config: dict[str, object] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context_len,
        "clean_up_tokenization_spaces": False,
    }
    for name, kind in _SPECIAL_TOKEN_KINDS.items():
        token_id = special_token_id(file, kind)
        if token_id is not None:
            config[name] = tokens[token_id]
    template = file.metadata.get("tokenizer.chat_template")
    if isinstance(template, str):
        config["chat_template"] = template
        (folder / "chat_template.jinja").write_text(template, "utf-8", newline="\n")
    encoded = msgspec.json.format(msgspec.json.encode(config), indent=2)
    (folder / "tokenizer_config.json").write_bytes(encoded + b"\n")


def _build_tokenizer(file: GgufFile, tokens: list[str]) -> Tokenizer:
    pre_tokenizer = _pre_tokenizer(file)
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    num_rows = file.tensors["token_embd.weight"].shape[0]
    if len(tokens) != num_rows or len(vocabulary) != num_rows:
        raise CorruptCheckpoint(
            f"{file.path} has {len(vocabulary)} different tokens for {num_rows} rows of "
            "embeddings. Download the file again."
        )
    try:
        tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=_merges(file)))
        bos_processor = _bos_processor(file, tokens)
    except Exception as error:  # the Rust library raises nothing narrower
        raise CorruptCheckpoint(
            f"{file.path}: its tokenizer does not fit together ({error}). Download the file again."
        ) from error
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    if bos_processor is not None:
        tokenizer.post_processor = bos_processor
    _add_special_tokens(file, tokenizer, tokens)
    return tokenizer


def _bos_processor(file: GgufFile, tokens: list[str]) -> processors.PostProcessor | None:
    """Puts the BOS token before every text, for models that were trained so."""
    bos_token_id = special_token_id(file, "bos")
    if bos_token_id is None or file.metadata.get("tokenizer.ggml.add_bos_token") is not True:
        return None
    bos_token = tokens[bos_token_id]
    return processors.TemplateProcessing(
        single=[bos_token, "$A"], special_tokens=[(bos_token, bos_token_id)]
    )


def _add_special_tokens(file: GgufFile, tokenizer: Tokenizer, tokens: list[str]) -> None:
    kinds = file.metadata.get("tokenizer.ggml.token_type")
    if not isinstance(kinds, list) or len(kinds) != len(tokens):
        raise CorruptCheckpoint(
            f"{file.path} does not say of what type each token is. Download the file again."
        )
    for token, kind in zip(tokens, kinds, strict=True):
        if kind == _CONTROL:
            tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False)])
        elif kind == _USER_DEFINED:
            tokenizer.add_tokens([AddedToken(token, special=False, normalized=False)])


def _pre_tokenizer(file: GgufFile) -> pre_tokenizers.PreTokenizer:
    model = file.metadata.get("tokenizer.ggml.model")
    name = file.metadata.get("tokenizer.ggml.pre")
    if model != "gpt2" or not isinstance(name, str) or name not in _PRE_TOKENIZERS:
        known = ", ".join(sorted(_PRE_TOKENIZERS))
        raise UnsupportedCheckpoint(
            f"{file.path} has a tokenizer {model!r} with pre-tokenizer {name!r}; byte-level BPE "
            f"('gpt2') with one of {known} is understood. Pull a safetensors folder instead."
        )
    return _PRE_TOKENIZERS[name]()


def _merges(file: GgufFile) -> list[tuple[str, str]]:
    pairs = [tuple(merge.split(" ")) for merge in _strings(file, "tokenizer.ggml.merges")]
    if any(len(pair) != 2 for pair in pairs):
        raise ValueError("a merge is not a pair")
    return pairs  # type: ignore[return-value]


def _strings(file: GgufFile, key: str) -> list[str]:
    value = file.metadata.get(key)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise CorruptCheckpoint(f"{file.path}: {key} is no list of strings. Download it again.")
    return value  # type: ignore[return-value]
