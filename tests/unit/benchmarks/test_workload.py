"""Prompts are repeatable, and as different as asked for."""

from __future__ import annotations

import orjson
import pytest

from benchmarks.workload import Workload, make_body, make_prompt


def make_workload(**changes: int | bool) -> Workload:
    fields = {"prompt_words": 17, "output_tokens": 64, "seed": 3}
    return Workload(**(fields | changes))  # type: ignore[arg-type]


def test_a_prompt_has_the_words_asked_for_and_is_the_same_every_time() -> None:
    prompts = [make_prompt(make_workload(), "0", 5) for _ in range(2)]
    assert prompts[0] == prompts[1]
    assert len(prompts[0].split()) == 17


def test_prompts_differ_between_requests_runs_and_seeds() -> None:
    prompts = {
        make_prompt(make_workload(seed=seed), run, index)
        for seed in (1, 2)
        for run in ("0a", "0b", "warmup")
        for index in range(50)
    }
    assert len(prompts) == 2 * 3 * 50


def test_only_the_shared_prefix_is_shared() -> None:
    workload = make_workload(shared_prefix_words=10)
    prompts = [make_prompt(workload, "0", index).split() for index in range(20)]
    assert len({tuple(words[:10]) for words in prompts}) == 1
    assert len({tuple(words[10:]) for words in prompts}) == 20
    assert {len(words) for words in prompts} == {17}


def test_the_body_asks_for_a_stream_that_ends_with_usage() -> None:
    body = orjson.loads(make_body(make_workload(), "m", "say something"))
    assert body == {
        "model": "m",
        "messages": [{"role": "user", "content": "say something"}],
        "max_tokens": 64,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_a_fixed_output_length_is_asked_for_only_when_told_to() -> None:
    body = orjson.loads(make_body(make_workload(ignore_eos=True), "m", "x"))
    assert body["ignore_eos"] is True
    assert body["min_tokens"] == body["max_tokens"] == 64


@pytest.mark.parametrize(
    "changes", [{"prompt_words": 0}, {"output_tokens": 0}, {"shared_prefix_words": 18}]
)
def test_impossible_workloads_are_refused(changes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"at least one|must lie between"):
        make_workload(**changes)
