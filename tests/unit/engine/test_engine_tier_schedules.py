"""Random schedules with a node's cache that loses, spoils and mixes up images, goes and comes back.

Answers are those got alone, blocks stay whole, and the runner raises where a block is read that
was freed or written that others hold. The fake node checks that only granted slots are written,
and that every lease ends.
"""

from dataclasses import dataclass, replace

import msgspec
from hypothesis import event, given, settings
from hypothesis import strategies as st

from cache_tiers.messages import Export
from engine.config import EngineConfig
from engine.messages import CacheBreakpoint, EngineRequest, FinishReason
from engine.paced_runner import PacedRunner
from tests.unit.engine.fakes import (
    Answer,
    answers_alone,
    make_request,
    make_runner,
    sample_name,
)
from tests.unit.engine.test_engine_schedules import (
    ADDS,
    CONFIGS,
    LEAVES,
    MAX_MODEL_LEN,
    Abort,
    Add,
    Leave,
    Step,
    check_answer,
    to_request,
)
from tests.unit.engine.tier_fakes import FakeNode, TieredEngine, make_tiered


@dataclass(frozen=True)
class Spoil:
    """Something happens to images at the node."""

    what: str
    number: int
    other: int


@dataclass(frozen=True)
class Node:
    """Something happens to the node."""

    what: str


@dataclass(frozen=True)
class Fill:
    """A prompt of its own takes all blocks of the accelerator that are free."""

    first: int


def shorten(add: Add, num_shared: int) -> Add:
    """Answers that end soon, prompts that begin alike, and few that are computed whole."""
    is_whole = add.seed == 0
    return replace(
        add,
        max_tokens=min(add.max_tokens, 8),
        num_shared=num_shared,
        num_prompt_logprobs=add.num_prompt_logprobs if is_whole else None,
    )


TIERED_ADDS = st.tuples(
    st.builds(shorten, ADDS, st.sampled_from([8, 12, 16, 17, 20, 22, 24])),
    st.just([])
    | st.lists(st.tuples(st.integers(1, 29), st.sampled_from([1.0, 100.0])), max_size=3),
)
OPERATIONS = st.lists(
    st.one_of(
        TIERED_ADDS,
        TIERED_ADDS,
        TIERED_ADDS,
        st.builds(Fill, st.integers(30, 45)),
        st.builds(Fill, st.integers(30, 45)),
        st.builds(Step, st.integers(1, 20)),
        st.builds(Step, st.integers(1, 20)),
        st.builds(Abort, st.integers(0, 15), st.none() | st.integers(0, 5), st.none()),
        st.builds(
            Spoil,
            st.sampled_from(["corrupt", "corrupt", "swap", "discard"]),
            st.integers(0, 40),
            st.integers(0, 40),
        ),
        st.builds(
            Node,
            st.sampled_from(["down", "up", "up", "silent", "answer", "export", "drain", "time"]),
        ),
        LEAVES,
    ),
    min_size=12,
    max_size=40,
)


def with_breakpoints(request: EngineRequest, places: list[tuple[int, float]]) -> EngineRequest:
    ttl_of = {place: ttl_s for place, ttl_s in places if place <= len(request.token_ids)}
    breakpoints = [CacheBreakpoint(place, ttl_of[place]) for place in sorted(ttl_of)]
    return msgspec.structs.replace(request, breakpoints=breakpoints)


def spoil(node: FakeNode, operation: Spoil) -> None:
    keys = sorted(node.images)
    if not keys:
        return
    key, other = keys[operation.number % len(keys)], keys[operation.other % len(keys)]
    match operation.what:
        case "corrupt":
            node.corrupt(key)
        case "swap":
            node.swap(key, other)
        case "discard":
            node.discard(key)


def change(tiered: TieredEngine, what: str) -> None:
    node = tiered.node
    match what:
        case "down" if node.is_up:
            node.go_down()
        case "up" if not node.is_up:
            node.come_up()
        case "silent":
            node.is_silent = True
        case "answer":
            node.is_silent = False
            node.answer()
        case "export" if node.is_up:
            node.news.append(Export(1, [*tiered.engine._blocks.kept_keys[:5], bytes(16)]))
        case "drain":
            tiered.engine.store_kept()
        case "time":
            tiered.clock.now_s += 1.5


def leave_and_come_back(tiered: TieredEngine, leave: Leave) -> None:
    engine = tiered.engine
    runner = tiered.runner.inner
    assert isinstance(runner, PacedRunner)
    engine.hand_over(only_waiting=leave.only_waiting)
    for _ in range(leave.num_steps):
        tiered.turn()
    if not leave.sleeps:
        engine.stay()
        return
    engine.store_kept()
    engine.hand_over(only_waiting=False)
    for _ in range(1000):
        if not engine._live:
            break
        tiered.turn()
    engine.sleep()
    assert tiered.node.leases == {}
    runner.free_kv()
    for what in ("export", "down", "up")[: leave.num_steps]:
        change(tiered, what)
        tiered.turn()
        assert tiered.desk.num_waiting == 0
        assert not tiered.desk.writer.is_due
    runner.allocate_kv()
    engine.wake()


@settings(max_examples=40, deadline=None)
@given(
    config=CONFIGS,
    num_blocks=st.integers(7, 10) | st.integers(4, 30),
    num_images=st.integers(1, 40),
    stock=st.integers(1, 12),
    check_period=st.sampled_from([1, 2, 1 << 32]),
    operations=OPERATIONS,
    max_step_tokens=st.none() | st.none() | st.integers(8, 40),
    block_s=st.sampled_from([0.0, 1e-9, 1e3]),
)
def test_any_schedule_with_any_node_answers_as_if_alone(
    config: EngineConfig,
    num_blocks: int,
    num_images: int,
    stock: int,
    check_period: int,
    operations: list[
        tuple[Add, list[tuple[int, float]]] | Fill | Step | Abort | Spoil | Node | Leave
    ],
    max_step_tokens: int | None,
    block_s: float,
) -> None:
    tiered = make_tiered(
        config.model_copy(update={"prefix_caching": True}),
        node=FakeNode(num_images=num_images, stock=stock),
        num_blocks=num_blocks,
        max_model_len=MAX_MODEL_LEN,
        check_period=check_period,
        inner=make_runner(num_blocks, max_step_tokens=max_step_tokens),
    )
    tiered.desk.pace.record(1, block_s)
    requests: list[EngineRequest] = []
    for operation in operations:
        match operation:
            case Step():
                for _ in range(operation.num_steps):
                    tiered.turn()
            case Abort():
                tiered.engine.abort(f"r{operation.number}", operation.num_kept, operation.index)
            case Spoil():
                spoil(tiered.node, operation)
            case Node():
                change(tiered, operation.what)
            case Leave():
                leave_and_come_back(tiered, operation)
            case Fill():
                num_tokens = tiered.engine.max_request_tokens - 1
                requests.append(
                    make_request(f"r{len(requests)}", [operation.first] * num_tokens, 1)
                )
                tiered.engine.add(requests[-1])
                for _ in range(20):
                    tiered.turn()
            case add, places:
                request = with_breakpoints(to_request(len(requests), add), places)
                requests.append(request)
                tiered.engine.add(request)
        tiered.engine.check_integrity()
    change(tiered, "answer")
    answers = tiered.run()

    assert tiered.engine.num_failed_steps == 0
    assert tiered.node.leases == {}
    assert tiered.engine.load.num_free_blocks == num_blocks
    check_answers(requests, answers, tiered.engine.max_request_tokens)
    stats = tiered.engine.stats.tiers
    assert stats is not None
    event(f"loaded: {min(stats.num_loaded_blocks.get('host', 0), 3)}")
    event(f"failed: {min(stats.num_failed_blocks.get('host', 0), 3)}")
    event(f"checked: {min(stats.num_checks, 2)}, differing: {min(stats.num_differing, 2)}")
    event(f"stored: {min(stats.num_stored_blocks, 3)}, dropped: {stats.num_dropped_blocks > 0}")
    event(f"pins: {min(tiered.node.num_sent()['Pin'], 2)}")
    event(f"losses: {min(stats.num_losses, 2)}")


def check_answers(requests: list[EngineRequest], answers: dict[str, Answer], capacity: int) -> None:
    for request in requests:
        num_tokens = len(request.token_ids)
        if not 0 < num_tokens <= capacity - min(1, request.sampling.max_tokens):
            assert answers[request.request_id].finish_reason is FinishReason.ERROR
            continue
        plain = msgspec.structs.replace(request, breakpoints=[])
        alone = answers_alone(plain, max_model_len=capacity)
        for index in range(request.num_samples):
            name = sample_name(request.request_id, index)
            check_answer(request, answers[name], alone[name])
            check_usage(request, answers[name])


def check_usage(request: EngineRequest, answer: Answer) -> None:
    usage = answer.usage
    assert usage is not None
    restored = usage.restored
    if restored is not None:
        assert restored.seconds >= 0
        assert 0 < restored.host <= usage.cached_tokens
        assert restored.disk == restored.peer == restored.object_store == 0
    last = request.breakpoints[-1].num_tokens if request.breakpoints else 0
    assert sum(write.num_tokens for write in usage.cache_written) <= last
