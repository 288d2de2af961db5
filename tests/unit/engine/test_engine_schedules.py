"""Random schedules of add, step and abort: blocks stay whole, answers are those got alone."""

from dataclasses import dataclass

from hypothesis import event, given, settings
from hypothesis import strategies as st

from engine.config import EngineConfig
from engine.messages import EngineRequest, FinishReason
from tests.unit.engine.fakes import (
    BLOCK_SIZE,
    Answer,
    answer_alone,
    collect,
    make_config,
    make_engine,
    make_request,
    run_to_end,
)

MAX_MODEL_LEN = 40


@dataclass(frozen=True)
class Add:
    prefix: int
    num_shared: int
    tail: list[int]
    max_tokens: int
    stop_token_ids: tuple[int, ...]
    seed: int


@dataclass(frozen=True)
class Step:
    num_steps: int


@dataclass(frozen=True)
class Abort:
    index: int
    num_kept: int | None


ADDS = st.builds(
    Add,
    prefix=st.integers(0, 1),
    num_shared=st.integers(0, 24) | st.sampled_from([16, 20]),
    tail=st.lists(st.integers(3, 5), max_size=5),
    max_tokens=st.integers(1, 20) | st.just(20),
    stop_token_ids=st.sampled_from([(), (), (11, 12, 13)]),
    seed=st.integers(0, 2),
)
OPERATIONS = st.lists(
    st.one_of(
        ADDS,
        ADDS,
        st.builds(Step, st.integers(1, 6)),
        st.builds(Abort, st.integers(0, 15), st.none() | st.integers(0, 5)),
    ),
    min_size=12,
    max_size=40,
)
CONFIGS = st.builds(
    make_config,
    max_num_seqs=st.integers(1, 6) | st.just(6),
    max_num_batched_tokens=st.integers(1, 32),
    min_prefill_chunk_tokens=st.integers(1, 8),
    prefix_caching=st.booleans(),
)


def to_request(index: int, add: Add) -> EngineRequest:
    shared = [20 + add.prefix + position % 7 for position in range(add.num_shared)]
    return make_request(
        f"r{index}",
        [*shared, *add.tail],
        add.max_tokens,
        stop_token_ids=add.stop_token_ids,
        seed=add.seed,
    )


@settings(max_examples=200, deadline=None)
@given(config=CONFIGS, num_blocks=st.integers(2, 20), operations=OPERATIONS)
def test_any_schedule_keeps_blocks_whole_and_answers_as_if_alone(
    config: EngineConfig, num_blocks: int, operations: list[Add | Step | Abort]
) -> None:
    engine = make_engine(config, num_blocks=num_blocks, max_model_len=MAX_MODEL_LEN)
    requests: list[EngineRequest] = []
    answers: dict[str, Answer] = {}
    for operation in operations:
        match operation:
            case Add():
                requests.append(to_request(len(requests), operation))
                engine.add(requests[-1])
            case Step():
                for _ in range(operation.num_steps):
                    collect(answers, engine.step().deltas)
                    engine.check_integrity()
            case Abort():
                engine.abort(f"r{operation.index}", operation.num_kept)
        engine.check_integrity()
    run_to_end(engine, answers)

    load = engine.step().load
    assert load.num_free_blocks == num_blocks
    assert answers.keys() == {request.request_id for request in requests}
    capacity = min(MAX_MODEL_LEN, num_blocks * BLOCK_SIZE)
    for request in requests:
        check_answer(request, answers[request.request_id], capacity)
    event(f"preemptions: {min(load.num_preemptions, 3)}")
    event(f"prefix hits: {load.num_cached_prompt_tokens > 0}")


def check_answer(request: EngineRequest, answer: Answer, capacity: int) -> None:
    num_prompt_tokens = len(request.token_ids)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == num_prompt_tokens
    num_counted = answer.usage.completion_tokens + answer.usage.overrun_tokens
    assert num_counted == len(answer.token_ids)
    if not 0 < num_prompt_tokens < capacity:
        assert answer.finish_reason is FinishReason.ERROR
        assert answer.token_ids == []
        return
    assert answer.usage.cached_tokens < num_prompt_tokens
    alone = answer_alone(request, max_model_len=capacity)
    assert answer.error is None
    if answer.finish_reason is FinishReason.ABORT or answer.usage.overrun_tokens:
        assert answer.token_ids == alone.token_ids[: len(answer.token_ids)]
    elif answer.finish_reason is FinishReason.LENGTH:
        assert answer.token_ids == alone.token_ids
        assert alone.finish_reason is FinishReason.LENGTH
    else:
        # Ended by a stop token, or by a stop string that the last token completed.
        assert answer.finish_reason is FinishReason.STOP
        assert answer.token_ids == alone.token_ids[: len(answer.token_ids)]
