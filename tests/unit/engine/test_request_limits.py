"""What would fail a step, and with it everybody in the batch, is refused at the door."""

import math

import msgspec
import pytest
from msgspec.structs import replace

from engine.errors import RequestError
from engine.messages import CacheBreakpoint
from engine.request_limits import MAX_NUM_SAMPLES, RequestLimits, num_places
from tests.unit.engine.fakes import BLOCK_SIZE, make_request

LIMITS = RequestLimits(max_len=32, block_size_tokens=BLOCK_SIZE, vocab_size=50)


@pytest.mark.parametrize("token_ids", [[0], [49], [0, 49] * 15 + [1]])
def test_all_that_fits_is_taken(token_ids: list[int]) -> None:
    LIMITS.check(make_request("a", token_ids, max_tokens=1000, seed=2**64 - 1))


@pytest.mark.parametrize(("token_id", "words"), [(50, "token id 50"), (2**40, "1099511627776")])
def test_a_token_that_the_model_lacks_is_named(token_id: int, words: str) -> None:
    request = make_request("a", [1, 2, 3])
    request.token_ids[1] = token_id
    with pytest.raises(RequestError, match=words):
        LIMITS.check(request)


@pytest.mark.parametrize("num_samples", [1, MAX_NUM_SAMPLES])
def test_samples_within_the_limit_are_taken(num_samples: int) -> None:
    request = make_request("a", [1, 2, 3], num_samples=num_samples)
    LIMITS.check(request)
    assert num_places(request) == num_samples


@pytest.mark.parametrize(("num_samples", "places"), [(0, 1), (-1, 1), (129, 128), (2**62, 128)])
def test_other_numbers_of_samples_are_refused(num_samples: int, places: int) -> None:
    request = make_request("a", [1, 2, 3], num_samples=num_samples)
    with pytest.raises(RequestError, match="between 1 and 128"):
        LIMITS.check(request)
    assert num_places(request) == places


def test_a_prompt_may_fill_the_context_if_nothing_follows() -> None:
    LIMITS.check(make_request("a", [1] * 32, max_tokens=0))
    with pytest.raises(RequestError, match="at most 31"):
        LIMITS.check(make_request("a", [1] * 32, max_tokens=1))


def test_every_option_at_its_limit_is_taken() -> None:
    request = make_request("a", [1, 2, 3], max_tokens=4)
    sampling = msgspec.structs.replace(
        request.sampling,
        top_k=2**40,
        min_p=1.0,
        repetition_penalty=0.01,
        presence_penalty=-2.0,
        frequency_penalty=2.0,
        logit_bias=((0, -100.0), (49, 100.0)),
        min_tokens=4,
        num_logprobs=50,
        num_prompt_logprobs=0,
    )
    LIMITS.check(msgspec.structs.replace(request, sampling=sampling))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.5),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_p", 0.0),
        ("top_p", 1.5),
        ("top_p", math.nan),
        ("seed", -1),
        ("seed", 2**64),
        ("max_tokens", -1),
        ("top_k", -1),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("min_p", math.nan),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", math.nan),
        ("repetition_penalty", math.inf),
        ("presence_penalty", math.nan),
        ("presence_penalty", math.inf),
        ("frequency_penalty", math.nan),
        ("stop_token_ids", (3, 50)),
        ("stop_token_ids", (-1,)),
        ("logit_bias", ((50, 1.0),)),
        ("logit_bias", ((-1, 1.0),)),
        ("logit_bias", ((3, math.nan),)),
        ("logit_bias", ((3, math.inf),)),
        ("min_tokens", -1),
        ("min_tokens", 5),
        ("num_logprobs", -1),
        ("num_logprobs", 51),
        ("num_prompt_logprobs", -1),
        ("num_prompt_logprobs", 51),
    ],
)
def test_sampling_that_no_runner_can_carry_out_is_named(field: str, value: float) -> None:
    request = make_request("a", [1, 2, 3])
    sampling = msgspec.structs.replace(request.sampling, **{field: value})
    with pytest.raises(RequestError, match=field):
        LIMITS.check(msgspec.structs.replace(request, sampling=sampling))


def test_a_timeout_that_would_never_be_over_is_refused() -> None:
    request = make_request("a", [1, 2, 3])
    with pytest.raises(RequestError, match="timeout_s"):
        LIMITS.check(msgspec.structs.replace(request, timeout_s=math.nan))
    LIMITS.check(msgspec.structs.replace(request, timeout_s=-1.0))  # over at once


@pytest.mark.parametrize(
    ("breakpoints", "words"),
    [
        ([CacheBreakpoint(0, 60.0)], "rising order"),
        ([CacheBreakpoint(10, 60.0)], "within the prompt"),
        ([CacheBreakpoint(5, 60.0), CacheBreakpoint(5, 60.0)], "rising order"),
        ([CacheBreakpoint(6, 60.0), CacheBreakpoint(5, 60.0)], "rising order"),
        ([CacheBreakpoint(5, 0.0)], "ttl_s"),
        ([CacheBreakpoint(5, math.nan)], "ttl_s"),
        ([CacheBreakpoint(5, math.inf)], "ttl_s"),
        ([CacheBreakpoint(n, 60.0) for n in range(1, 100)], "at most 64"),
    ],
)
def test_breakpoints_lie_within_the_prompt_and_end(
    breakpoints: list[CacheBreakpoint], words: str
) -> None:
    request = replace(make_request("a", [3] * 9), breakpoints=breakpoints)
    with pytest.raises(RequestError, match=words):
        LIMITS.check(request)


def test_breakpoints_up_to_the_last_token_are_taken() -> None:
    breakpoints = [CacheBreakpoint(1, 0.5), CacheBreakpoint(9, 3600.0)]
    LIMITS.check(replace(make_request("a", [3] * 9), breakpoints=breakpoints))


def test_keys_of_another_size_are_refused() -> None:
    request = make_request("a", [3] * 9)
    with pytest.raises(RequestError, match="16 bytes"):
        LIMITS.check(replace(request, block_keys=[b"short", *request.block_keys[1:]]))
    with pytest.raises(RequestError, match="16 bytes"):
        LIMITS.check(replace(request, root_key=b""))


@pytest.mark.parametrize("return_s", [-1.0, math.nan, math.inf])
def test_a_return_must_be_expected_at_a_time(return_s: float) -> None:
    with pytest.raises(RequestError, match="expected_return_s"):
        LIMITS.check(replace(make_request("a", [3] * 9), expected_return_s=return_s))
