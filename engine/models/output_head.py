"""From last hidden states to logits: the end of a decoder, whatever computes its layers."""

from torch import Tensor

from engine.layers.greedy_head import PickedLogits, Wishes
from engine.layers.norm import RmsNorm
from engine.layers.vocabulary import Vocabulary
from engine.models.model_config import ModelConfig
from engine.one_thread import one_thread


class OutputHead:
    """Final norm and vocabulary of one model, or of a rank's part of it."""

    def __init__(self, config: ModelConfig, *, vocabulary: Vocabulary, final_norm: RmsNorm) -> None:
        self.config = config
        self._vocabulary = vocabulary
        self._final_norm = final_norm
        self._rows: tuple[Tensor, Tensor] | None = None
        """Last hidden states that are being asked about, and the same normed."""

    def logits(self, hidden: Tensor) -> Tensor:
        """[num_rows, vocab_size] for the rows of last hidden states given, in the weights' dtype or
        in float32; valid until the next call.

        bfloat16 has a step of 1/8 at a logit of 25: the likeliest tokens often tie.
        """
        return self._cap(self._vocabulary.logits(self._normed(hidden).to(self._vocabulary.dtype)))

    @property
    def is_exact(self) -> bool:
        """Whether ``logits`` are as good as ``exact_logits``."""
        return self._vocabulary.is_exact

    def margins(self, hidden: Tensor) -> Tensor | None:
        """[num_rows] By how much a float32 logit must exceed another one of its row to be larger
        for certain; None if that is not known.

        ``logits`` multiplies a normed state h that was rounded, say by d. A logit is off by d w,
        w being its row of the matrix, hence the difference of two by at most |d| (|w| + |v|). Of
        float32 sums of n products each is off by at most n 2^-24 |h| |w| more (Higham: Accuracy
        and Stability of Numerical Algorithms, 2002, section 3.1), here and in ``exact_logits``.
        The cap brings logits closer together, so that it changes nothing.
        """
        norm = self._vocabulary.largest_row_norm
        if norm is None:
            return None
        exact = self._normed(hidden)
        rounding = (exact - exact.to(self._vocabulary.dtype)).norm(dim=-1)
        summing = exact.norm(dim=-1).mul_(2 * exact.shape[-1] * 2.0**-24)
        margins: Tensor = (rounding + summing) * (2 * norm)
        return margins

    def exact_logits(self, hidden: Tensor, token_ids: Tensor) -> Tensor:
        """Logits in float32 of a few tokens per row: ``token_ids`` is [num_rows, num_tokens].

        After ``logits`` of the same rows, as often as needed.
        """
        return self._cap(self._vocabulary.exact_logits(self._normed(hidden), token_ids))

    @property
    def can_pick(self) -> bool:
        """Whether ``pick`` may be called."""
        # The cap makes equals of large logits.
        return self._vocabulary.greedy_head is not None and self.config.final_logit_softcap is None

    def pick(self, hidden: Tensor, wishes: Wishes) -> PickedLogits:
        """Instead of ``logits``: the likeliest tokens of some rows, by exact logits, and the logits
        of some; ``wishes`` is [num_rows]."""
        vocabulary = self._vocabulary
        greedy_head = vocabulary.greedy_head
        assert greedy_head is not None, "can_pick is False"
        # Asked for only where it counts: that reads the whole table.
        norm = 0.0 if vocabulary.is_exact else vocabulary.largest_row_norm
        assert norm is not None, "whoever can pick knows all rows"
        with one_thread():
            normed = self._normed(hidden)
        return greedy_head.pick(normed, wishes, largest_row_norm=norm)

    def finish_rows(self) -> None:
        """No question follows about the rows of the last ``logits``."""
        self._rows = None
        self._vocabulary.finish_rows()

    def follow_rows(self, hidden: Tensor) -> None:
        """What ranks other than 0 do while rank 0 goes from ``logits`` to ``finish_rows``."""
        normed = self._normed(hidden)
        self._vocabulary.follow_rows(normed.to(self._vocabulary.dtype), normed)
        self._rows = None

    def _normed(self, hidden: Tensor) -> Tensor:
        """In float32; computed once for all questions about the same rows."""
        if self._rows is None or self._rows[0] is not hidden:
            self._rows = hidden, self._final_norm.exact(hidden)
        return self._rows[1]

    def _cap(self, logits: Tensor) -> Tensor:
        cap = self.config.final_logit_softcap
        return logits if cap is None else (logits / cap).tanh_().mul_(cap)
