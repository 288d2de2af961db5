"""What the engine's section of the configuration refuses."""

import pytest
from pydantic import ValidationError

from engine.config import EngineConfig


def test_a_smallest_chunk_that_no_step_could_hold_is_refused_with_both_numbers() -> None:
    with pytest.raises(ValidationError, match=r"is 65, more than max_num_batched_tokens, 64"):
        EngineConfig(max_num_batched_tokens=64, min_prefill_chunk_tokens=65)
    EngineConfig(max_num_batched_tokens=64, min_prefill_chunk_tokens=64)
