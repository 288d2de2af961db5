"""Random schedules of add, step, abort, handing over and sleep: blocks stay whole, answers are
those got alone.

With several samples, classes, sliding windows and log probabilities, with and without the prefix
cache, with memory for the steps or too little. The runner raises where a block is read that was
freed, or written that others hold. What routers are told is what the cache holds, and an audit that
goes on all the while finds nothing.
"""

from dataclasses import dataclass, field

from hypothesis import event, given, settings
from hypothesis import strategies as st

from engine.block_audit import BlockAudit
from engine.config import EngineConfig
from engine.engine import Engine
from engine.messages import KEY_STRIDE, CacheEvents, EngineRequest, FinishReason, ServiceClass
from engine.paced_runner import PacedRunner
from engine.step_output import StepOutput
from tests.unit.engine.fakes import (
    Answer,
    answers_alone,
    collect,
    make_config,
    make_engine,
    make_request,
    make_runner,
    sample_name,
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
    num_samples: int
    num_logprobs: int | None
    num_prompt_logprobs: int | None
    service_class: ServiceClass
    age_s: float


@dataclass(frozen=True)
class Step:
    num_steps: int


@dataclass(frozen=True)
class Abort:
    number: int
    num_kept: int | None
    index: int | None


@dataclass(frozen=True)
class Leave:
    """Requests are handed over; then the engine stays, or sleeps and wakes."""

    only_waiting: bool
    num_steps: int
    sleeps: bool


LEAVES = st.builds(Leave, st.booleans(), st.integers(0, 4), st.booleans())
ADDS = st.builds(
    Add,
    prefix=st.integers(0, 1),
    num_shared=st.integers(0, 24) | st.sampled_from([16, 20]),
    tail=st.lists(st.integers(3, 5), max_size=5),
    max_tokens=st.integers(0, 20) | st.just(20),
    stop_token_ids=st.sampled_from([(), (), (11, 12, 13)]),
    seed=st.integers(0, 2),
    num_samples=st.just(1) | st.integers(1, 5),
    num_logprobs=st.none() | st.integers(0, 2),
    num_prompt_logprobs=st.none() | st.none() | st.integers(0, 2),
    service_class=st.sampled_from(ServiceClass),
    age_s=st.just(0.0) | st.floats(0, 100),
)
WINDOWS = st.sampled_from(
    [(None,), (None, None), (None, 5, 5), (None, 2, 8), (9,), (4, 11), (None, 100)]
)
OPERATIONS = st.lists(
    st.one_of(
        ADDS,
        ADDS,
        st.builds(Step, st.integers(1, 6)),
        st.builds(
            Abort,
            st.integers(0, 15),
            st.none() | st.integers(0, 5),
            st.none() | st.integers(0, 3),
        ),
        LEAVES,
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
    kv_admission=st.sampled_from(["optimistic", "predicted", "worst_case"]),
)


def to_request(index: int, add: Add) -> EngineRequest:
    shared = [20 + add.prefix + position % 7 for position in range(add.num_shared)]
    return make_request(
        f"r{index}",
        [*shared, *add.tail],
        add.max_tokens,
        stop_token_ids=add.stop_token_ids,
        seed=add.seed,
        num_samples=add.num_samples,
        num_logprobs=add.num_logprobs,
        num_prompt_logprobs=add.num_prompt_logprobs,
        service_class=add.service_class,
        age_s=add.age_s,
    )


@dataclass
class Watched:
    """An engine whose events are followed and whose blocks are audited all the while."""

    engine: Engine
    known_keys: set[bytes] = field(default_factory=set)
    num_events: int = 0
    audit: BlockAudit = field(init=False)

    def __post_init__(self) -> None:
        running = self.engine._scheduler.running
        self.audit = BlockAudit(self.engine._blocks, running, period_s=0.0, slice_blocks=3)

    def step(self, answers: dict[str, Answer]) -> StepOutput:
        output = self.engine.step()
        collect(answers, output.deltas)
        self.engine.check_integrity()
        self.follow(output.events)
        assert self.engine._blocks.announced_keys == self.known_keys == held_keys(self.engine)
        assert output.record is None or output.record.num_running == output.load.num_running
        for _ in range(3):
            assert self.audit.advance(0.0) is None
        return output

    def follow(self, events: CacheEvents | None) -> None:
        if events is None:
            return
        self.num_events += 1
        assert events.sequence == self.num_events
        assert events.stored or events.evicted
        stored, evicted = set(events.stored), set(events.evicted)
        assert len(stored) + len(evicted) == len(events.stored) + len(events.evicted)
        assert stored.isdisjoint(self.known_keys)
        assert evicted <= self.known_keys
        self.known_keys = (self.known_keys - evicted) | stored

    def leave(self, leave: Leave, answers: dict[str, Answer]) -> None:
        """And come back; what comes meanwhile is moved."""
        engine, runner = self.engine, self.engine._runner
        assert isinstance(runner, PacedRunner)
        engine.hand_over(only_waiting=leave.only_waiting)
        for _ in range(leave.num_steps):
            self.step(answers)
        if not leave.sleeps:
            engine.stay()
            return
        engine.hand_over(only_waiting=False)
        while engine._live:
            self.step(answers)
        engine.sleep()
        runner.free_kv()
        for _ in range(leave.num_steps):
            output = self.step(answers)
            assert output.record is None
            assert output.load.num_free_blocks == 0
        runner.allocate_kv()
        engine.wake()

    def run_to_end(self, answers: dict[str, Answer]) -> None:
        num_steps = 0
        while self.engine.has_work:
            self.step(answers)
            num_steps += 1
            assert num_steps < 5000, "the engine makes no progress"


def held_keys(engine: Engine) -> set[bytes]:
    """Every eighth key that all groups which count hold."""
    cache = engine._blocks._cache
    contents = cache._content.values()
    return {c.key for c in contents if c.chain_len % KEY_STRIDE == 0 and cache._is_held(c.key)}


@settings(max_examples=120, deadline=None)
@given(
    config=CONFIGS,
    num_blocks=st.integers(2, 30),
    windows=WINDOWS,
    operations=OPERATIONS,
    max_step_tokens=st.none() | st.integers(8, 40),
)
def test_any_schedule_keeps_blocks_whole_and_answers_as_if_alone(
    config: EngineConfig,
    num_blocks: int,
    windows: tuple[int | None, ...],
    operations: list[Add | Step | Abort | Leave],
    max_step_tokens: int | None,
) -> None:
    runner = make_runner(num_blocks, windows, max_step_tokens=max_step_tokens)
    engine = make_engine(
        config, num_blocks=num_blocks, max_model_len=MAX_MODEL_LEN, windows=windows, runner=runner
    )
    watched = Watched(engine)
    requests: list[EngineRequest] = []
    answers: dict[str, Answer] = {}
    for operation in operations:
        match operation:
            case Add():
                requests.append(to_request(len(requests), operation))
                engine.add(requests[-1])
            case Step():
                for _ in range(operation.num_steps):
                    watched.step(answers)
            case Abort():
                engine.abort(f"r{operation.number}", operation.num_kept, operation.index)
            case Leave():
                watched.leave(operation, answers)
        engine.check_integrity()
    watched.run_to_end(answers)

    assert engine.num_failed_steps == 0
    end = engine.step()
    load = end.load
    assert end.stats.num_leaked_blocks == end.stats.num_kv_tokens == 0
    assert load.num_free_blocks == num_blocks
    capacity = engine.max_request_tokens
    check_answers(requests, answers, capacity)
    event(f"preemptions: {min(load.num_preemptions, 3)}")
    event(f"out of memory: {min(end.stats.num_out_of_memory_steps, 3)}")
    event(f"moved: {min(end.stats.num_moved, 3)}")
    event(f"events: {min(watched.num_events, 3)}")
    event(f"prefix hits: {load.num_cached_prompt_tokens > 0}")


def check_answers(requests: list[EngineRequest], answers: dict[str, Answer], capacity: int) -> None:
    expected_names: set[str] = set()
    for request in requests:
        num_prompt_tokens = len(request.token_ids)
        names = [sample_name(request.request_id, i) for i in range(request.num_samples)]
        if not 0 < num_prompt_tokens <= capacity - min(1, request.sampling.max_tokens):
            refusal = answers[request.request_id]
            assert refusal.finish_reason is FinishReason.ERROR
            assert refusal.token_ids == []
            expected_names.add(request.request_id)
            continue
        expected_names |= set(names)
        alone = answers_alone(request, max_model_len=capacity)
        for name in names:
            check_answer(request, answers[name], alone[name])
    assert answers.keys() == expected_names


def check_answer(request: EngineRequest, answer: Answer, alone: Answer) -> None:
    assert answer.error is None
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(request.token_ids)
    assert answer.usage.cached_tokens < len(request.token_ids)
    num_counted = answer.usage.completion_tokens + answer.usage.overrun_tokens
    assert num_counted == len(answer.token_ids)
    assert answer.token_ids == alone.token_ids[: len(answer.token_ids)]
    assert answer.logprobs == alone.logprobs[: len(answer.logprobs)]
    if request.sampling.num_logprobs is not None:
        assert len(answer.logprobs) == len(answer.token_ids)
    if answer.token_ids:
        assert answer.prompt_logprobs == alone.prompt_logprobs
    if answer.finish_reason is FinishReason.LENGTH:
        assert answer.token_ids == alone.token_ids
        assert answer.prompt_logprobs == alone.prompt_logprobs
        assert alone.finish_reason is FinishReason.LENGTH
    elif answer.finish_reason not in (FinishReason.ABORT, FinishReason.MOVED):
        # Ended by a stop token, or by a stop string that the last token completed.
        assert answer.finish_reason is FinishReason.STOP
