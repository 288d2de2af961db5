"""Sessions of a chat product: lengths, sharing, what a turn repeats of the one before."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import islice, pairwise

import orjson
import pytest

from benchmarks.chat_workload import ChatWorkload


def num_words(messages: list[dict[str, str]]) -> int:
    return sum(len(message["content"].split()) for message in messages)


def test_prompts_have_three_thousand_tokens_and_answers_four_hundred_in_the_mean() -> None:
    turns = [turn for number in range(150) for turn in ChatWorkload(seed=1).session("0", number)]
    prompts = [num_words(turn.messages) for turn in turns]
    answers = sorted(turn.answer_tokens for turn in turns)
    assert sum(prompts) / len(prompts) == pytest.approx(3000, rel=0.05)
    assert sum(answers) / len(answers) == pytest.approx(400, rel=0.1)
    assert answers[len(answers) // 2] < 320  # long-tailed: half of them are short
    assert answers[-len(answers) // 100] > 1400


def test_sessions_share_a_few_system_prompts_and_the_first_ones_most() -> None:
    workload = ChatWorkload(seed=2)
    systems = Counter(
        next(workload.session("0", number)).messages[0]["content"] for number in range(400)
    )
    shares = [count / 400 for _, count in systems.most_common()]
    assert len(shares) == 8
    assert {len(system.split()) for system in systems} == {2000}
    # 1 / sum of k^-1.1 for k up to 8
    assert shares[0] == pytest.approx(0.396, abs=0.08)
    assert shares[0] > 4 * shares[-1]


def test_a_turn_repeats_the_turn_before_until_the_history_is_trimmed() -> None:
    workload = ChatWorkload(seed=3)
    num_trimmed = 0
    for number in range(20):
        turns = list(workload.session("0", number))
        assert len(turns) == 15
        for before, after in pairwise(turns):
            is_continued = after.messages[: len(before.messages)] == before.messages
            num_trimmed += not is_continued
            assert after.messages[0] == before.messages[0]
            # Beyond the bound stands no more than the newest message.
            assert num_words(after.messages[1:-1]) <= workload.max_history_words
            assert [message["role"] for message in after.messages[1:]] == [
                role
                for role, _ in zip(("user", "assistant") * 15, after.messages[1:], strict=False)
            ]
    assert 0 < num_trimmed < 20 * 7  # most turns find the one before in the cache


def test_runs_are_repeatable_and_differ_from_each_other() -> None:
    first, again, other = (ChatWorkload(seed=4).bodies("m", run, 20) for run in ("0a", "0a", "0b"))
    assert first == again
    assert not set(first) & set(other)
    assert len(set(first)) == 20


def test_marked_workloads_share_lengths_and_system_prompts_but_no_message_of_a_user() -> None:
    workload = ChatWorkload(seed=6, num_turns=4)
    alpha, beta = (list(replace(workload, mark=mark).session("0", 0)) for mark in ("alpha", "beta"))
    assert [turn.answer_tokens for turn in alpha] == [turn.answer_tokens for turn in beta]
    for one, other in zip(alpha, beta, strict=True):
        assert num_words(one.messages) == num_words(other.messages)
        assert one.messages[0] == other.messages[0]
        assert one.messages[1]["content"].startswith("alpha ")
        assert one.messages[1] != other.messages[1]


def test_bodies_ask_for_the_length_of_each_answer() -> None:
    workload = ChatWorkload(seed=5, num_turns=3).scaled(0.1)
    bodies = [orjson.loads(body) for body in workload.bodies("m", "0", 4)]
    turns = [*workload.session("0", 0), *islice(workload.session("0", 1), 1)]
    assert [body["max_tokens"] for body in bodies] == [turn.answer_tokens for turn in turns]
    assert [body["messages"] for body in bodies] == [turn.messages for turn in turns]
    assert all(body["ignore_eos"] and body["stream"] for body in bodies)


def test_scaling_changes_lengths_only() -> None:
    scaled = ChatWorkload(seed=0).scaled(0.25)
    assert (scaled.system_words, scaled.mean_user_words, scaled.mean_answer_tokens) == (
        500,
        15,
        100,
    )
    assert (scaled.num_turns, scaled.num_system_prompts) == (15, 8)


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), 11.0])
def test_a_senseless_scale_is_refused(scale: float) -> None:
    with pytest.raises(ValueError, match="scale must lie above 0"):
        ChatWorkload(seed=0).scaled(scale)
