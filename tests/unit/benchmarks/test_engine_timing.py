from collections.abc import Collection, Mapping

import pytest

from benchmarks.engine_cases import CONTEXT_LEN, Case, Prompts, decode_case
from benchmarks.engine_timing import measure_speed


class ScriptedEngine:
    """Prefills one prompt a step of 1 s, then decodes all in steps of 0.1 s; adding takes 0.5 s."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.waiting: list[str] = []
        self.running: dict[str, int] = {}
        self.prompt_lens: list[int] = []
        self.aborted: list[str] = []

    def clock(self) -> float:
        return self.now_s

    def add(self, request_id: str, prompt: list[int], max_tokens: int) -> None:
        self.now_s += 0.5
        self.prompt_lens.append(len(prompt))
        self.waiting.append(request_id)
        self.running[request_id] = max_tokens

    def step(self) -> Mapping[str, int]:
        decoding = [name for name in self.running if name not in self.waiting]
        if self.waiting:
            self.now_s += 1.0
            decoding.append(self.waiting.pop(0))
        else:
            self.now_s += 0.1
        for name in decoding:
            self.running[name] -= 1
        self.running = {name: left for name, left in self.running.items() if left}
        return dict.fromkeys(decoding, 1)

    def abort(self, request_ids: Collection[str]) -> None:
        self.aborted += request_ids
        self.running.clear()


def test_decode_counts_only_steps_after_the_last_prefill() -> None:
    engine = ScriptedEngine()
    speed = measure_speed(engine, decode_case("d", 4), Prompts(0, 100), engine.clock)
    assert speed.tokens_per_s == pytest.approx(40.0)
    assert speed.step_s == pytest.approx(0.1)
    assert engine.aborted == ["0", "1", "2", "3"]
    assert not engine.running


def test_decode_has_its_context_in_the_middle() -> None:
    for num_steps in (2, 64):
        case = decode_case("d", 1, num_steps)
        assert case.prompt_len + num_steps / 2 == CONTEXT_LEN


def test_prefill_is_the_time_from_the_first_request_to_the_last_first_token() -> None:
    engine = ScriptedEngine()
    speed = measure_speed(engine, Case("p", "prefill", 3, 10), Prompts(0, 100), engine.clock)
    assert speed.tokens_per_s == pytest.approx(3 * 10 / (3 * 0.5 + 3 * 1.0))


def test_mixed_counts_the_arriving_prompt_and_what_decodes_beside_it() -> None:
    engine = ScriptedEngine()
    case = Case("m", "mixed", 4, 8, arriving_len=100)
    speed = measure_speed(engine, case, Prompts(0, 100), engine.clock)
    assert engine.prompt_lens == [8] * 4 + [100]
    assert speed.tokens_per_s == pytest.approx((100 + 4) / (0.5 + 1.0))
    assert not engine.running


def test_a_step_without_tokens_belongs_to_the_next() -> None:
    class Lagging(ScriptedEngine):
        num_steps = 0

        def step(self) -> Mapping[str, int]:
            self.num_steps += 1
            if self.num_steps % 2:
                self.now_s += 0.1
                return {}
            return super().step()

    engine = Lagging()
    speed = measure_speed(engine, decode_case("d", 1, 8), Prompts(0, 100), engine.clock)
    assert speed.step_s == pytest.approx(0.2)
    assert speed.tokens_per_s == pytest.approx(5.0)


def test_prompts_are_drawn_anew_and_repeatable() -> None:
    first, second = Prompts(3, 50), Prompts(3, 50)
    drawn = first.draw(20)
    assert drawn == second.draw(20)
    assert drawn != first.draw(20)
    assert all(0 <= token_id < 50 for token_id in drawn)
