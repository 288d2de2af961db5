"""The teaching model gives the figures that are on the blackboard."""

import math

import pytest

from simulator.teaching import (
    TeachingLoad,
    decode_ceiling_tokens_per_s,
    estimate,
    iteration_ms,
    kv_tokens,
    prefill_tokens_per_s,
    wait_in_services,
)

GIB = 2**30


@pytest.mark.parametrize(("batch", "ceiling"), [(1, 104.7), (8, 597.0), (16, 898.9), (32, 1203.0)])
def test_decode_ceilings(batch: int, ceiling: float) -> None:
    assert round(decode_ceiling_tokens_per_s(batch), 1) == ceiling


def test_an_iteration_has_a_base_and_a_share_of_each_sequence() -> None:
    assert iteration_ms(1) == pytest.approx(9.55)
    assert iteration_ms(32) == pytest.approx(26.6)


@pytest.mark.parametrize("batch", [0, 33])
def test_other_batches_are_refused(batch: int) -> None:
    with pytest.raises(ValueError, match="1 to 32"):
        iteration_ms(batch)


def test_prefill_gets_what_decoding_leaves() -> None:
    assert prefill_tokens_per_s(0.0) == 9000
    assert prefill_tokens_per_s(0.25) == 6750
    assert prefill_tokens_per_s(1.0) == 0
    with pytest.raises(ValueError, match="between 0 and 1"):
        prefill_tokens_per_s(1.5)


def test_waiting_grows_without_bound_towards_full_use() -> None:
    assert wait_in_services(0.0) == 0
    assert wait_in_services(0.5) == 1
    assert wait_in_services(0.9) == pytest.approx(9)
    assert wait_in_services(1.0) == math.inf
    with pytest.raises(ValueError, match="negative"):
        wait_in_services(-0.1)


def test_half_the_precision_holds_twice_the_tokens() -> None:
    assert kv_tokens(GIB, "fp16") == 8192
    assert kv_tokens(GIB, "fp8") == 16384


def test_a_load_is_followed_to_its_times() -> None:
    # 898.9 tokens/s at 16: answers take 1/4 of them, which leaves 6,750 tokens/s for prompts.
    requests_per_s = 898.876404 / 4 / 100
    load = TeachingLoad(requests_per_s, prompt_tokens=1000, answer_tokens=100, batch=16)
    seen = estimate(load)
    assert seen.decode_share == pytest.approx(0.25)
    assert seen.prefill_tokens_per_s == pytest.approx(6750)
    assert seen.utilization == pytest.approx(2247.19 / 6750, rel=1e-5)
    assert seen.tpot_s == pytest.approx(0.0178)
    assert seen.ttft_s == pytest.approx(1000 / (6750 - 2247.19) + 0.0178, rel=1e-5)
    assert seen.kv_tokens == 17600


def test_what_cannot_be_kept_up_with_takes_for_ever() -> None:
    too_many_prompts = estimate(TeachingLoad(9.0, prompt_tokens=1000, answer_tokens=1, batch=1))
    assert too_many_prompts.ttft_s == math.inf
    assert too_many_prompts.tpot_s < math.inf
    too_many_answers = estimate(TeachingLoad(2.0, prompt_tokens=1, answer_tokens=100, batch=1))
    assert too_many_answers.tpot_s == math.inf
    assert too_many_answers.ttft_s == math.inf
