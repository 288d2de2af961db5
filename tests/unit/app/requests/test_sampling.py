"""From the fields of a request to what the engine is told."""

from typing import Any

import msgspec
import pytest

from app.errors import ContextLengthError, InvalidRequestError
from app.requests.chat_request import parse_chat_request
from app.requests.completion_request import parse_completion_request
from app.requests.sampling import check_can_fit, check_token_ids, sampling_params
from app.requests.sampling_fields import SamplingFields
from engine.messages import ModelCard, SamplingDefaults, SamplingParams
from tests.unit.app.fakes import EOS_ID, make_card

CARD = make_card(max_model_len=256)


def chat(**fields: Any) -> SamplingFields:
    good = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
    return parse_chat_request(good | fields, max_fanout=16)


def completion(**fields: Any) -> SamplingFields:
    return parse_completion_request({"model": "m", "prompt": "Hi"} | fields, max_fanout=16)


def sample(
    request: SamplingFields, num_prompt_tokens: int = 6, card: ModelCard = CARD
) -> SamplingParams:
    return sampling_params(request, num_prompt_tokens, card)


def test_what_is_left_open_is_off() -> None:
    params = sample(chat(seed=1))
    assert params == SamplingParams(max_tokens=250, seed=1, stop_token_ids=(EOS_ID,))


def test_what_is_left_open_is_what_the_models_makers_recommend() -> None:
    defaults = SamplingDefaults(
        temperature=0.6, top_p=0.9, top_k=20, min_p=0.05, repetition_penalty=1.1
    )
    card = msgspec.structs.replace(CARD, sampling_defaults=defaults)
    params = sample(chat(), card=card)
    assert (params.temperature, params.top_p, params.top_k) == (0.6, 0.9, 20)
    assert (params.min_p, params.repetition_penalty) == (0.05, 1.1)
    asked = {"temperature": 0, "top_p": 1, "top_k": 0, "min_p": 0, "repetition_penalty": 1}
    params = sample(chat(**asked), card=card)
    assert (params.temperature, params.top_p, params.top_k) == (0, 1, 0)
    assert (params.min_p, params.repetition_penalty) == (0, 1)


def test_everything_asked_for_reaches_the_engine() -> None:
    request = chat(
        max_completion_tokens=9,
        temperature=0.5,
        top_p=0.8,
        top_k=7,
        min_p=0.1,
        repetition_penalty=1.2,
        presence_penalty=-1,
        frequency_penalty=2,
        logit_bias={"5": -100, "257": 1.5},
        seed=3,
        stop_token_ids=[7, EOS_ID, 7],
        min_tokens=9,
        logprobs=True,
        top_logprobs=4,
        n=2,
    )
    assert sample(request) == SamplingParams(
        max_tokens=9,
        temperature=0.5,
        top_p=0.8,
        seed=3,
        stop_token_ids=(EOS_ID, 7),
        top_k=7,
        min_p=0.1,
        repetition_penalty=1.2,
        presence_penalty=-1,
        frequency_penalty=2,
        logit_bias=((5, -100), (257, 1.5)),
        min_tokens=9,
        num_logprobs=4,
    )


@pytest.mark.parametrize(("seed", "sent"), [(-1, 2**64 - 1), (-5, 2**64 - 5), (2**64 - 1, -1)])
def test_any_seed_is_taken_modulo_64_bits(seed: int, sent: int) -> None:
    assert sample(chat(seed=seed)).seed == sent % 2**64


def test_without_a_seed_each_request_has_its_own() -> None:
    seeds = {sample(chat()).seed for _ in range(20)}
    assert len(seeds) == 20
    assert all(0 <= seed < 2**64 for seed in seeds)


@pytest.mark.parametrize(("top_k", "sent"), [(-1, 0), (0, 0), (257, 257), (258, 0), (10**18, 0)])
def test_a_top_k_of_the_whole_vocabulary_is_off(top_k: int, sent: int) -> None:
    assert sample(chat(top_k=top_k)).top_k == sent


def test_ignoring_the_end_keeps_the_clients_own_stop_tokens() -> None:
    assert sample(chat(ignore_eos=True, stop_token_ids=[5])).stop_token_ids == (5,)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logit_bias": {"5": 1, "258": 1}}, "logit_bias"),
        ({"logit_bias": {"9999999999": 1}}, "logit_bias"),
        ({"stop_token_ids": [5, 258]}, "stop_token_ids"),
    ],
)
def test_tokens_that_the_model_does_not_have_are_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        sample(chat(**fields))
    assert caught.value.param == param
    unknown = "9999999999" if "9999999999" in str(fields) else "258"
    assert f"{unknown} is not a token" in caught.value.message
    assert "below 258" in caught.value.message


def test_ids_of_a_prompt_are_checked_by_the_name_of_their_field() -> None:
    check_token_ids([0, 257], CARD, param="prompt")
    check_token_ids([], CARD, param="prompt")
    with pytest.raises(InvalidRequestError) as caught:
        check_token_ids([0, 258, 1], CARD, param="prompt")
    assert caught.value.param == "prompt"


def test_texts_are_completed_by_16_tokens_or_what_is_left() -> None:
    assert sample(completion()).max_tokens == 16
    assert sample(completion(), num_prompt_tokens=250).max_tokens == 6
    assert sample(completion(max_tokens=200)).max_tokens == 200


@pytest.mark.parametrize("make", [chat, completion])
def test_an_answer_of_no_tokens_fits_behind_a_prompt_that_fills_the_context(make: Any) -> None:
    assert sample(make(max_tokens=0), num_prompt_tokens=256).max_tokens == 0
    with pytest.raises(ContextLengthError):
        sample(make(max_tokens=0), num_prompt_tokens=257)
    with pytest.raises(ContextLengthError):
        sample(make(), num_prompt_tokens=256)


@pytest.mark.parametrize(
    ("request_", "param", "limit"),
    [
        (chat(max_tokens=200), "messages", "at most 156 with 'max_tokens'"),
        (chat(max_completion_tokens=200), "messages", "at most 156 with 'max_completion_tokens'"),
        (completion(max_tokens=10**18), "prompt", "at most 156 with 'max_tokens'"),
    ],
)
def test_what_would_fit_is_told(request_: SamplingFields, param: str, limit: str) -> None:
    with pytest.raises(ContextLengthError, match=limit) as caught:
        sample(request_, num_prompt_tokens=100)
    assert caught.value.param == param
    assert "maximum context length is 256 tokens. However" in caught.value.message
    assert caught.value.headers["x-should-retry"] == "false"


def test_a_small_kv_cache_is_told_apart_from_a_short_context() -> None:
    card = msgspec.structs.replace(CARD, max_request_tokens=64)
    assert sample(chat(), card=card).max_tokens == 58
    with pytest.raises(ContextLengthError, match=r"is 64 tokens here .* itself allows 256"):
        sample(chat(max_tokens=59), card=card)


def test_a_prompt_that_is_too_long_by_far_is_refused_before_it_is_tokenized() -> None:
    check_can_fit(completion(), 256, CARD)
    with pytest.raises(ContextLengthError, match="at least 257 tokens in 'prompt'"):
        check_can_fit(completion(), 257, CARD)


def test_a_prompt_without_a_token_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="at least one token") as caught:
        sample(completion(prompt=""), num_prompt_tokens=0)
    assert caught.value.param == "prompt"


@pytest.mark.parametrize(
    "request_", [chat(min_tokens=6, max_tokens=5), completion(min_tokens=17), chat(min_tokens=251)]
)
def test_the_fewest_tokens_are_at_most_the_most(request_: SamplingFields) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        sample(request_)
    assert caught.value.param == "min_tokens"


def test_the_best_samples_are_chosen_by_log_probabilities_that_nobody_asked_for() -> None:
    assert sample(completion(n=2, best_of=3)).num_logprobs == 0
    assert sample(completion(n=2, best_of=3, logprobs=2)).num_logprobs == 2
    assert sample(completion(n=2, best_of=2)).num_logprobs is None


def test_an_echo_asks_for_the_prompts_log_probabilities_too() -> None:
    params = sample(completion(echo=True, logprobs=1, max_tokens=0))
    assert (params.max_tokens, params.num_logprobs, params.num_prompt_logprobs) == (0, 1, 1)
