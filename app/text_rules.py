"""From what a client asked for to the rules by which tokens become its text."""

from collections.abc import Callable

from app.answer_options import AnswerOptions
from app.detokenizer import Detokenizer
from app.generation import TextRules
from app.tokenization import ModelTokenizer
from engine.messages import SamplingParams


def text_rules(
    options: AnswerOptions,
    sampling: SamplingParams,
    tokenizer: ModelTokenizer,
    create_detokenizer: Callable[[], Detokenizer] | None = None,
) -> TextRules:
    """``create_detokenizer``: if not the model's plain one."""

    def bytes_of(token_id: int) -> bytes:
        return bytes(tokenizer.token_text(token_id).bytes)

    return TextRules(
        create_detokenizer=create_detokenizer or tokenizer.create_detokenizer,
        stops=options.stops,
        includes_stop=options.includes_stop,
        stop_token_ids=frozenset(sampling.stop_token_ids),
        min_tokens=sampling.min_tokens,
        bytes_of=None if options.num_top_logprobs is None else bytes_of,
        collects_token_ids=options.returns_token_ids,
    )
