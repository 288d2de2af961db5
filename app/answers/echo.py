"""The prompt as the first piece of a completion's text, with its log probabilities if asked for.

Must not know HTTP; ``app.answers.answer`` decides when the piece is shown.
"""

import sys
from collections.abc import Callable, Sequence

from app.answers.answer import EchoMaker
from app.answers.generation import Piece
from app.answers.token_trace import TokenTrace, TracedToken
from app.text.detokenizer import Detokenizer
from app.text.token_text import TokenText
from engine.messages import TokenLogprobs


def create_echo(
    prompt: str | list[int],
    token_ids: Sequence[int],
    detokenizer: Detokenizer,
    token_text: Callable[[int], TokenText],
    *,
    has_logprobs: bool,
) -> EchoMaker:
    """``prompt``: as the client sent it, and ``token_ids`` what became of it.

    Takes a few microseconds per token.
    """
    if not has_logprobs:
        parts = [prompt] if isinstance(prompt, str) else [*map(detokenizer.push, token_ids)]
        echo = Piece("".join([*parts, detokenizer.flush()]))
        return lambda _: echo
    tokens = _placed(prompt, token_ids, detokenizer, token_text)
    text = b"".join(token.bytes for token in tokens).decode()
    if isinstance(prompt, str) and text != prompt:
        # A tokenizer that changes the text: which part came of which token cannot be said.
        tokens = [TracedToken(token.token_id, None, b"") for token in tokens]
        tokens[-1].bytes = prompt.encode()
        text = prompt

    def make(logprobs: Sequence[TokenLogprobs]) -> Piece:
        # Nothing says how likely the first token was.
        for token, logprob in zip(tokens[1:], logprobs, strict=True):
            token.logprobs = logprob
        return Piece(text, tokens=tokens)

    return make


def _placed(
    prompt: str | list[int],
    token_ids: Sequence[int],
    detokenizer: Detokenizer,
    token_text: Callable[[int], TokenText],
) -> list[TracedToken]:
    """The tokens with their bytes of the text; special tokens have some only where the client
    spelled them.
    """
    trace = TokenTrace(lambda token_id: bytes(token_text(token_id).bytes))
    tokens: list[TracedToken] = []
    num_chars = 0
    for token_id in token_ids:
        piece = detokenizer.push(token_id)
        if not piece and isinstance(prompt, str):
            text = token_text(token_id)
            if not text.bytes and prompt.startswith(text.text, num_chars):
                piece = text.text
        num_chars += len(piece)
        trace.push(token_id, None, piece)
        tokens += trace.release(sys.maxsize).tokens
    trace.end(detokenizer.flush())
    return tokens + trace.release(sys.maxsize).tokens
