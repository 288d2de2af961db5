"""Hardware has a name, and steps on it take what was published."""

import pytest

from engine.step_time import StepWork
from simulator.errors import FleetSpecError
from simulator.fleet import FleetSpec, simulate
from simulator.presets import PRESETS, find_preset, price_per_hour
from simulator.synthetic import poisson


def test_steps_of_a_large_model_take_what_was_measured() -> None:
    model = find_preset("h100-llama2-70b-tp8").model
    assert model.step_time_s(StepWork(1024)) == pytest.approx(0.0777)
    assert model.step_time_s(StepWork(num_decodes=16)) == pytest.approx(0.0342)


def test_more_gpus_are_faster_and_hold_more() -> None:
    for gpu in ("h100", "a100"):
        four, eight = (find_preset(f"{gpu}-llama2-70b-tp{n}") for n in (4, 8))
        work = StepWork(4096, 8)
        assert eight.model.step_time_s(work) < four.model.step_time_s(work)
        # 8 × 72 GB less 145 GB, at 327,680 bytes a token
        assert eight.num_kv_tokens == 1_315_307
        assert four.num_kv_tokens == 436_401


def test_teaching_shares_a_step_between_decodes_and_prefill() -> None:
    model = find_preset("teaching").model
    assert model.step_time_s(StepWork(num_decodes=16)) == pytest.approx(0.0178)
    assert model.step_time_s(StepWork(900)) == pytest.approx(0.1)
    # In 100 ms, decodes take 17.8: prompts get 82.2 % of 9,000 tokens/s.
    num_tokens = round(9000 * 0.0822)
    assert model.step_time_s(StepWork(num_tokens, 16)) == pytest.approx(0.1, rel=1e-3)


def test_a_step_takes_as_many_ticks_as_its_units_fill() -> None:
    model = find_preset("tick").model
    assert model.step_time_s(StepWork(1)) == pytest.approx(0.02)
    assert model.step_time_s(StepWork(512)) == pytest.approx(0.02)
    assert model.step_time_s(StepWork(328, 4)) == pytest.approx(0.02)
    assert model.step_time_s(StepWork(329, 4)) == pytest.approx(0.04)
    assert find_preset("tick").num_kv_tokens == 16 * 8192


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_serves(name: str) -> None:
    workload = poisson(
        num_requests=20, requests_per_s=1.0, num_prompt_tokens=1000, num_answer_tokens=20
    )
    outcome = simulate(workload, FleetSpec(2, PRESETS[name].spec()))
    assert len(outcome.requests) == 20


def test_an_unknown_gpu_lists_those_that_are_known() -> None:
    with pytest.raises(FleetSpecError, match=r"'b300'.*h100-llama2-70b-tp8.*headwater profile"):
        find_preset("b300")


def test_gpus_have_a_price_and_formulas_have_none() -> None:
    assert price_per_hour("h100-llama2-70b-tp8") > price_per_hour("a100-llama2-70b-tp8") > 0
    assert price_per_hour("teaching") == 0
