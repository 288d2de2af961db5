"""Root mean square norm (arXiv:1910.07467), in float32 whatever the weights are."""

import torch
import torch.nn.functional as F  # noqa: N812 - the field's name for it
from torch import Tensor


class RmsNorm:
    """Norms the last dimension."""

    def __init__(self, weight: Tensor, *, eps: float, offset: float, dtype: torch.dtype) -> None:
        # Gemma stores weights less one: the sum must not be rounded to the weights' dtype.
        self._weight = weight.float() + offset if offset else weight.float()
        self._shape = self._weight.shape
        self._eps = eps
        self._dtype = dtype

    @property
    def weight(self) -> Tensor:
        """In float32, with the offset."""
        return self._weight

    def __call__(self, x: Tensor) -> Tensor:
        """Float32 to the dtype of the weights."""
        return F.rms_norm(x, self._shape, self._weight, self._eps).to(self._dtype)

    def exact(self, x: Tensor) -> Tensor:
        """Float32 to float32."""
        return F.rms_norm(x, self._shape, self._weight, self._eps)
