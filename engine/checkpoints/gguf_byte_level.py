"""Byte-level BPE tokenizers of GGUF files (tokenizer.ggml.model "gpt2").

How a text is split before merging is only a name in the file (tokenizer.ggml.pre); what each name
stands for is listed here. The expressions are those of the models' own tokenizer.json; which names
share one is in llama.cpp's llama-vocab.cpp. An unknown name is refused: a guess would split text
otherwise than the model was trained on and only make it slightly worse, which nobody would notice.
"""

from collections.abc import Callable
from dataclasses import dataclass

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from engine.checkpoints.errors import UnsupportedCheckpoint
from engine.checkpoints.gguf_file import GgufFile
from engine.checkpoints.gguf_metadata import strings, text

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_PUNCTUATION = r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_BEFORE_WORD = r"[^\r\n\p{L}\p{N}]?"
_LLAMA3 = _CONTRACTIONS + rf"|{_BEFORE_WORD}\p{{L}}+|\p{{N}}{{1,3}}" + _PUNCTUATION + _TAIL
_QWEN2 = _CONTRACTIONS + rf"|{_BEFORE_WORD}\p{{L}}+|\p{{N}}" + _PUNCTUATION + _TAIL
_SEED_CODER = _CONTRACTIONS + rf"|{_BEFORE_WORD}\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+" + _TAIL
_TEKKEN = (
    rf"{_BEFORE_WORD}{_UPPER}*{_LOWER}+|{_BEFORE_WORD}{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _TAIL
)
_GPT4O = (
    rf"{_BEFORE_WORD}{_UPPER}*{_LOWER}+{_CONTRACTIONS}?"
    rf"|{_BEFORE_WORD}{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _TAIL
)
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}")
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*" + _TAIL,
)


def _gpt2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _single_digits() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


def _split(*expressions: str) -> Callable[[], pre_tokenizers.PreTokenizer]:
    """Splits by each expression in turn, matches and what is between them alike."""

    def create() -> pre_tokenizers.PreTokenizer:
        steps = [pre_tokenizers.Split(Regex(expression), "isolated") for expression in expressions]
        return pre_tokenizers.Sequence(
            [*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )

    return create


@dataclass(frozen=True, slots=True)
class _Kind:
    """What a name of tokenizer.ggml.pre stands for."""

    pre_tokenizer: Callable[[], pre_tokenizers.PreTokenizer]
    takes_whole_words: bool = False
    """A piece that is a token is not merged again, whatever the merges say."""
    is_composed: bool = False
    """Text is brought to Unicode's composed form (NFC) first."""
    adds_bos: bool = False
    """Unless the file says otherwise."""


_llama3 = _Kind(_split(_LLAMA3), takes_whole_words=True, adds_bos=True)
_llama3_merging = _Kind(_split(_LLAMA3))
_qwen2 = _Kind(_split(_QWEN2))
_plain = _Kind(_gpt2)
_digits = _Kind(_single_digits)
_gpt4o = _Kind(_split(_GPT4O))

_KINDS = {
    "llama-bpe": _llama3, "llama3": _llama3, "llama-v3": _llama3, "falcon3": _llama3,
    "pixtral": _llama3, "midm-2.0": _llama3,
    "smaug-bpe": _llama3_merging, "dbrx": _llama3_merging,
    "qwen2": _Kind(_split(_QWEN2), is_composed=True),
    "deepseek-r1-qwen": _qwen2, "megrez": _qwen2, "stablelm2": _qwen2, "hunyuan": _qwen2,
    "gpt-2": _plain, "phi-2": _plain, "mpt": _plain, "olmo": _plain, "exaone4": _plain,
    "a.x-4.0": _plain, "gigachat": _plain, "trillion": _plain,
    "smollm": _digits, "starcoder": _digits, "refact": _digits, "command-r": _digits,
    "codeshell": _digits, "exaone": _digits, "minerva-7b": _digits,
    "tekken": _Kind(_split(_TEKKEN), takes_whole_words=True, adds_bos=True),
    "gpt-4o": _gpt4o, "llama4": _gpt4o,
    "deepseek-coder": _Kind(_split(*_DEEPSEEK_CODER)),
    "deepseek-v3": _Kind(_split(*_DEEPSEEK3)),
    "seed-coder": _Kind(_split(_SEED_CODER)),
}  # fmt: skip


def adds_bos_by_default(file: GgufFile) -> bool:
    return _kind(file).adds_bos


def byte_level_tokenizer(file: GgufFile, vocabulary: dict[str, int]) -> Tokenizer:
    """The tokenizer without its special tokens; a merge that doesn't fit raises what the library
    raises.
    """
    kind = _kind(file)
    tokenizer = Tokenizer(
        models.BPE(vocab=vocabulary, merges=_merges(file), ignore_merges=kind.takes_whole_words)
    )
    if kind.is_composed:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = kind.pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _kind(file: GgufFile) -> _Kind:
    name = text(file, "tokenizer.ggml.pre")
    if name not in _KINDS:
        raise UnsupportedCheckpoint(
            f"{file.path} splits text by the pre-tokenizer {str(name)[:40]!r}; of byte-level "
            f"ones, {', '.join(sorted(_KINDS))} are understood. Pull a safetensors folder instead."
        )
    return _KINDS[name]


def _merges(file: GgufFile) -> list[tuple[str, str]]:
    pairs = [tuple(merge.split(" ")) for merge in strings(file, "tokenizer.ggml.merges")]
    if any(len(pair) != 2 for pair in pairs):
        raise ValueError("a merge is not a pair")
    return pairs  # type: ignore[return-value]
