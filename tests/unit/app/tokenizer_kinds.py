"""Small tokenizers of every kind that the supported families use, trained on a few sentences."""

import json
from collections.abc import Callable

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

CORPUS = [
    "The quick brown fox jumps over the lazy dog. The dog doesn't mind; it's 1234 years old!",
    "user assistant system the answer is in the house\n\nand the house is in the answer   twice",
    "Größe, naïve café, 漢字 and かな, 漢字漢字 the end of the line\nnext line\t tab",
]
ALPHABET = pre_tokenizers.ByteLevel.alphabet()
LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CONTROL = ["<s>", "</s>", "<|turn|>", "<|end|>"]


def _add_control(tokenizer: Tokenizer, **flags: bool) -> Tokenizer:
    flags = {"special": True, "normalized": False} | flags
    tokenizer.add_special_tokens([AddedToken(content, **flags) for content in CONTROL])
    return tokenizer


def _byte_level(words: str, normalizer: normalizers.Normalizer | None) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(words), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=ALPHABET, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def llama3() -> Tokenizer:
    tokenizer = _add_control(_byte_level(LLAMA3_WORDS, None))
    bos = ("<s>", tokenizer.token_to_id("<s>"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[bos]
    )
    return tokenizer


def qwen2() -> Tokenizer:
    words = LLAMA3_WORDS.replace("{1,3}", "")
    tokenizer = _add_control(_byte_level(words, normalizers.NFC()))
    tokenizer.add_tokens([AddedToken("<tool_call>", special=False, normalized=False)])
    return tokenizer


def _sentencepiece() -> Tokenizer:
    """The vocabulary: pieces with spaces as ``▁``, and every byte."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.train_from_iterator(
        CORPUS[:2],
        trainers.BpeTrainer(vocab_size=200, special_tokens=["<unk>"], show_progress=False),
    )
    parts = json.loads(tokenizer.to_str())
    vocabulary = parts["model"]["vocab"]
    for byte in range(256):
        vocabulary[f"<0x{byte:02X}>"] = len(vocabulary)
    parts["added_tokens"] = []
    parts["pre_tokenizer"] = None
    return Tokenizer.from_str(json.dumps(parts))


def _decoder(*more: decoders.Decoder) -> decoders.Decoder:
    return decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *more]
    )


def llama2() -> Tokenizer:
    tokenizer = _sentencepiece()
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = _decoder(decoders.Strip(" ", 1, 0))
    return _add_control(tokenizer)


def mistral() -> Tokenizer:
    tokenizer = _sentencepiece()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = _decoder(decoders.Strip(" ", 1, 0))
    return _add_control(tokenizer)


def metaspace() -> Tokenizer:
    tokenizer = _sentencepiece()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    return _add_control(tokenizer)


def gemma() -> Tokenizer:
    tokenizer = _sentencepiece()
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = _decoder()
    _add_control(tokenizer)
    runs = ["\n\n", "\n\n\n", "▁▁", "▁▁▁", "<table>"]
    tokenizer.add_tokens([AddedToken(run, special=False, normalized=False) for run in runs])
    return tokenizer


def phi() -> Tokenizer:
    """Its control tokens take the white space after them along; one takes that before it."""
    tokenizer = _sentencepiece()
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = _decoder(decoders.Strip(" ", 1, 0))
    _add_control(tokenizer, rstrip=True)
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, normalized=False)])
    return tokenizer


def word_piece() -> Tokenizer:
    """None of the supported families; its tokens have no bytes of their own."""
    pieces = ["[UNK]", "the", "answer", "##s", "is", "a", "##b", "!", "é"]
    tokenizer = Tokenizer(
        models.WordPiece({piece: id_ for id_, piece in enumerate(pieces)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    return _add_control(tokenizer)


def normalized_control() -> Tokenizer:
    """Control tokens that are only found after normalizing: pieces cannot stand alone."""
    return _add_control(_byte_level(LLAMA3_WORDS, normalizers.NFC()), normalized=True)


CHAT_KINDS: dict[str, Callable[[], Tokenizer]] = {
    kind.__name__: kind for kind in (llama3, qwen2, llama2, mistral, metaspace, gemma, phi)
}
