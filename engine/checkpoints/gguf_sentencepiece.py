"""SentencePiece BPE tokenizers of GGUF files (tokenizer.ggml.model "llama"): Llama 2, Mistral,
Gemma.

SentencePiece merges the neighbours whose union has the best score; the ``tokenizers`` library wants
a list of merges, so each token's score becomes the rank of all pairs that make it, as transformers'
converter does it (``generate_merges`` in convert_slow_tokenizer.py). Characters that are in no
token become their UTF-8 bytes.
"""

from collections.abc import Mapping, Sequence
from math import isfinite

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from engine.checkpoints.errors import CorruptCheckpoint
from engine.checkpoints.gguf_file import GgufFile
from engine.checkpoints.gguf_metadata import flag, numbers, token_id
from engine.checkpoints.gguf_token_types import CONTROL, NORMAL, USER_DEFINED

SPACE = "▁"
_MAX_PIECE_CHARS = 256  # SentencePiece's own limit is 16 unless the trainer raises it
_MAX_CHARS = 1 << 24  # of all pieces; Gemma 3, the largest, has 2 million
_MAX_MERGES = 1 << 20  # Gemma 3 has 514,906


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
    to_text = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if flag(file, "tokenizer.ggml.add_space_prefix", default=True):
        to_text.append(decoders.Strip(" ", 1, 0))
        if _begins_texts_once(vocabulary, kinds):
            tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, "first", split=False)
        else:
            steps = [normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)]
            tokenizer.normalizer = normalizers.Sequence(steps)
    else:
        tokenizer.normalizer = normalizers.Replace(" ", SPACE)
    tokenizer.decoder = decoders.Sequence(to_text)
    return tokenizer


def _begins_texts_once(vocabulary: Mapping[str, int], kinds: Sequence[int]) -> bool:
    """Whether the space that is put before a text isn't put after each special token, too.

    transformers puts it there for Llama 2 and the first Mistrals, as does llama.cpp for all; since
    the third Mistral, whose instructions begin with a token, templates write the space themselves
    (github.com/mistralai/mistral-common/issues/3).
    """
    number = vocabulary.get("[INST]")
    return number is not None and kinds[number] == CONTROL


def _merges(
    file: GgufFile, vocabulary: Mapping[str, int], kinds: Sequence[int]
) -> list[tuple[str, str]]:
    """All pairs of tokens that make a token, best first: by score, then by the longer left half.

    User-defined tokens come before all others and don't merge on: SentencePiece cuts them out
    before it merges, and those that can't be cut out of the text, since they hold its spaces in
    their inner form, are made by merging. Tokens of other types are never made out of text.
    """
    scores = numbers(file, "tokenizer.ggml.scores", len(kinds))
    if not all(map(isfinite, scores)):
        raise CorruptCheckpoint(f"{file.path}: a token's score is no number. Download it again.")
    normal = {token: number for token, number in vocabulary.items() if kinds[number] == NORMAL}
    user_defined = {
        token: number for token, number in vocabulary.items() if kinds[number] == USER_DEFINED
    }
    first = {token: float("inf") for token in user_defined}
    ranked = _ranked_pairs(file, first, normal | user_defined)
    ranked += _ranked_pairs(file, {token: scores[normal[token]] for token in normal}, normal)
    ranked.sort()
    return [pair for _, pair in ranked]


def _ranked_pairs(
    file: GgufFile, scores: Mapping[str, float], halves: Mapping[str, int]
) -> list[tuple[tuple[float, int, int, int], tuple[str, str]]]:
    """Each way to make a token of ``scores`` out of two of ``halves``, after what orders it."""
    if sum(map(len, scores)) > _MAX_CHARS:
        raise CorruptCheckpoint(f"{file.path}: its tokens are too long. Download it again.")
    ranked = []
    for token, score in scores.items():
        if len(token) > _MAX_PIECE_CHARS:
            raise CorruptCheckpoint(
                f"{file.path}: a token has {len(token)} characters. Download the file again."
            )
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in halves and right in halves:
                ranked.append(((-score, -cut, halves[left], halves[right]), (left, right)))
        if len(ranked) > _MAX_MERGES:
            raise CorruptCheckpoint(
                f"{file.path}: its tokens merge in more than {_MAX_MERGES} ways, which makes no "
                "sense. Download it again."
            )
    return ranked
