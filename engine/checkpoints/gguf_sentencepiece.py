"""SentencePiece BPE tokenizers of GGUF files (tokenizer.ggml.model "llama"): Llama 2, Mistral,
Gemma.

SentencePiece merges the neighbours whose union has the best score; the ``tokenizers`` library wants
a list of merges, so each token's score becomes the rank of all pairs that make it, as transformers'
converter does it (``generate_merges`` in convert_slow_tokenizer.py). Characters that are in no
token become their UTF-8 bytes.
"""

from collections.abc import Mapping, Sequence
from math import isfinite

from tokenizers import Tokenizer, decoders, models, normalizers

from engine.checkpoints.errors import CorruptCheckpoint
from engine.checkpoints.gguf_file import GgufFile
from engine.checkpoints.gguf_metadata import flag, numbers, token_id
from engine.checkpoints.gguf_token_types import NORMAL, USER_DEFINED

SPACE = "▁"
_MAX_PIECE_CHARS = 256  # SentencePiece's own limit is 16 unless the trainer raises it
_MAX_MERGES = 1 << 21  # Gemma 3, the largest, has 514,906


def sentencepiece_tokenizer(
    file: GgufFile, vocabulary: dict[str, int], kinds: Sequence[int]
) -> Tokenizer:
    """The tokenizer without its special tokens; ``kinds`` are the tokens' types, by id."""
    unknown_id = token_id(file, "unknown")
    tokens = {number: token for token, number in vocabulary.items()}
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocabulary,
            merges=_merges(file, vocabulary, kinds),
            unk_token=None if unknown_id is None else tokens.get(unknown_id),
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    replace_spaces = normalizers.Replace(" ", SPACE)
    to_text = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if flag(file, "tokenizer.ggml.add_space_prefix", default=True):
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), replace_spaces])
        tokenizer.decoder = decoders.Sequence([*to_text, decoders.Strip(" ", 1, 0)])
    else:
        tokenizer.normalizer = replace_spaces
        tokenizer.decoder = decoders.Sequence(to_text)
    return tokenizer


def _merges(
    file: GgufFile, vocabulary: Mapping[str, int], kinds: Sequence[int]
) -> list[tuple[str, str]]:
    """All pairs of tokens that make a token, best first: by score, then by the longer left half.

    User-defined tokens come before all others: SentencePiece cuts them out before it merges, and
    those that can't be cut out of the text, since they hold its spaces in their inner form, are
    made by merging. Tokens of other types are never made out of text.
    """
    scores = numbers(file, "tokenizer.ggml.scores", len(kinds))
    if not all(map(isfinite, scores)):
        raise CorruptCheckpoint(f"{file.path}: a token's score is no number. Download it again.")
    mergeable = {
        token: number for token, number in vocabulary.items()
        if kinds[number] in (NORMAL, USER_DEFINED)
    }  # fmt: skip
    ranked = []
    for token, number in mergeable.items():
        if len(token) > _MAX_PIECE_CHARS:
            raise CorruptCheckpoint(
                f"{file.path}: token {number} has {len(token)} characters. Download it again."
            )
        score = float("inf") if kinds[number] == USER_DEFINED else float(scores[number])
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in mergeable and right in mergeable:
                order = (-score, -cut, mergeable[left], mergeable[right])
                ranked.append((order, (left, right)))
        if len(ranked) > _MAX_MERGES:
            raise CorruptCheckpoint(
                f"{file.path}: its tokens merge in more than {_MAX_MERGES} ways, which makes no "
                "sense. Download it again."
            )
    ranked.sort()
    return [pair for _, pair in ranked]
