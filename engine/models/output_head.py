"""From last hidden states to logits: the end of a decoder, whatever computes its layers."""

from torch import Tensor

from engine.layers.norm import RmsNorm
from engine.layers.vocabulary import Vocabulary
from engine.models.model_config import ModelConfig


class OutputHead:
    """Final norm and vocabulary of one model, or of a rank's part of it."""

    def __init__(self, config: ModelConfig, *, vocabulary: Vocabulary, final_norm: RmsNorm) -> None:
        self.config = config
        self._vocabulary = vocabulary
        self._final_norm = final_norm

    def logits(self, hidden: Tensor) -> Tensor:
        """[num_rows, vocab_size] for the rows of last hidden states given, in the weights' dtype or
        in float32; valid until the next call.

        bfloat16 has a step of 1/8 at a logit of 25: the likeliest tokens often tie.
        """
        return self._cap(self._vocabulary.logits(self._final_norm(hidden)))

    def exact_logits(self, hidden: Tensor, token_ids: Tensor) -> Tensor:
        """Logits in float32 of a few tokens per row: ``token_ids`` is [num_rows, num_tokens].

        After ``logits`` of the same rows, as often as needed.
        """
        normed = self._final_norm.exact(hidden)
        return self._cap(self._vocabulary.exact_logits(normed, token_ids))

    def finish_rows(self) -> None:
        """No call of ``exact_logits`` follows for the rows of the last ``logits``."""
        self._vocabulary.finish_rows()

    def follow_rows(self, hidden: Tensor) -> None:
        """What ranks other than 0 do while rank 0 goes from ``logits`` to ``finish_rows``."""
        self._vocabulary.follow_rows(self._final_norm(hidden), self._final_norm.exact(hidden))

    def _cap(self, logits: Tensor) -> Tensor:
        cap = self.config.final_logit_softcap
        return logits if cap is None else (logits / cap).tanh_().mul_(cap)
