"""The benchmark of tokenizing: what it asks, and what is made of its figures."""

import pytest

from app.text.tokenization import ModelTokenizer
from benchmarks.tokenizing import (
    ConversationCost,
    LongPromptCost,
    main,
    measure_conversation,
    measure_long_prompt,
    results_of,
)
from tests.unit.app.fakes import make_card


def test_a_conversation_costs_time_and_tokens() -> None:
    cost = measure_conversation(ModelTokenizer(make_card()), run=1)
    assert cost.num_tokens > 3000
    assert min(cost.new_ms, cost.whole_text_ms, cost.next_turn_ms, cost.detokenizing_ms) > 0


async def test_the_loops_stalls_are_measured_beside_a_long_prompt() -> None:
    cost = await measure_long_prompt(ModelTokenizer(make_card()), 1, num_words=100)
    assert cost.prompt_ms > 0
    assert cost.longest_stall_ms > 0


def test_results_are_medians_in_milliseconds_and_microseconds() -> None:
    conversations = [ConversationCost(1000, new_ms, 2.0, 1.0, 0.5) for new_ms in (3.0, 9.0, 4.0)]
    results = {
        result.case: result for result in results_of(conversations, [LongPromptCost(80, 5, 1)])
    }
    assert (results["prompt_3k_new"].value, results["prompt_3k_new"].peer_value) == (4.0, 2.0)
    assert results["long_prompt_longest_stall"].of_limit == 0.5
    assert results["detokenizing_per_token"].value == 0.5


def test_bad_options_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--out", "x.json", "--runs", "0"])
    assert "at least 1" in capsys.readouterr().err
