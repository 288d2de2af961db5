"""From what a client asked for to the rules by which tokens become its text."""

from collections.abc import Sequence

from app.answers.generation import TextRules
from app.requests.answer_options import AnswerOptions
from app.text.detokenizer import Detokenizer
from app.text.tokenization import ModelTokenizer
from engine.messages import SamplingParams

_NUM_CONTEXT_TOKENS = 8


def text_rules(
    options: AnswerOptions,
    sampling: SamplingParams,
    tokenizer: ModelTokenizer,
    *,
    context_ids: Sequence[int] = (),
) -> TextRules:
    """``context_ids``: tokens that the text goes on from. What a token reads like may depend on
    them: some tokenizers drop the space that a text begins with.
    """
    context_ids = context_ids[-_NUM_CONTEXT_TOKENS:]

    def bytes_of(token_id: int) -> bytes:
        return bytes(tokenizer.token_text(token_id).bytes)

    def create_detokenizer() -> Detokenizer:
        detokenizer = tokenizer.create_detokenizer()
        for token_id in context_ids:
            detokenizer.push(token_id)
        detokenizer.flush()
        return detokenizer

    return TextRules(
        create_detokenizer=create_detokenizer if context_ids else tokenizer.create_detokenizer,
        stops=options.stops,
        includes_stop=options.includes_stop,
        stop_token_ids=frozenset(sampling.stop_token_ids),
        min_tokens=sampling.min_tokens,
        bytes_of=None if options.num_top_logprobs is None else bytes_of,
        collects_token_ids=options.returns_token_ids,
    )
