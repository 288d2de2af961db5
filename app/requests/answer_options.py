"""What a client asked of its answer, chat and text completions alike; plain data.

Made by the request models, read by whoever builds the answer. Must not know HTTP or the engine.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """How one answer is shaped."""

    num_choices: int = 1
    """``n``: choices per prompt."""
    num_samples: int = 1
    """``best_of``: generated per prompt, of which the likeliest ``num_choices`` are shown."""
    stops: tuple[str, ...] = ()
    includes_stop: bool = False
    """``include_stop_str_in_output``: the stop string is part of the text."""
    num_top_logprobs: int | None = None
    """Alternatives shown per token; None: no log probabilities at all."""
    echoes_prompt: bool = False
    """``echo``: the prompt comes before the text, with its log probabilities if asked for."""
    is_stream: bool = False
    includes_usage: bool = False
    """``stream_options.include_usage``: a last chunk with the usage."""
    has_continuous_usage: bool = False
    """``stream_options.continuous_usage_stats``: every chunk carries the usage so far."""
    returns_token_ids: bool = False
    """``return_token_ids``: choices carry the token ids beside the text."""
