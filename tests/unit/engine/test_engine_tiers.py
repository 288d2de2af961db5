"""An engine with a node's cache: what is restored, what is stored, and what becomes of failures."""

import weakref

import pytest
from msgspec.structs import replace

from cache_tiers.messages import (
    Cancel,
    Ended,
    Export,
    Exported,
    Fetch,
    Fetched,
    Found,
    Loaded,
    RecomputeCost,
    Slots,
    Store,
)
from cache_tiers.tier import TierKind
from engine.config import PacedConfig
from engine.errors import StepOutOfMemory
from engine.messages import CacheBreakpoint, FinishReason, RestoredTokens, Usage
from engine.paced_runner import PacedRunner
from engine.step import StepPlan, StepResult
from engine.tier_desk import TierDesk
from tests.unit.engine.fakes import (
    BLOCK_SIZE,
    EOS,
    VOCAB_SIZE,
    Answer,
    make_config,
    make_engine,
    make_request,
    make_runner,
    run_to_end,
)
from tests.unit.engine.tier_fakes import LAYOUT, FakeNode, TieredEngine, make_tiered


def prompt(num_tokens: int, first: int = 3) -> list[int]:
    return [first, *[10 + position % 30 for position in range(num_tokens - 1)]]


def evict_all(tiered: TieredEngine) -> None:
    """Let other prompts take all blocks of the accelerator."""
    num_tokens = tiered.engine._blocks.num_blocks * BLOCK_SIZE - 1
    tiered.engine.add(make_request("filler", prompt(num_tokens, first=4), max_tokens=1))
    tiered.run()
    del tiered.answers["filler"]


def usage_of(answer: Answer) -> Usage:
    """Apart from the time that copying took."""
    usage = answer.usage
    assert usage is not None
    if usage.restored is None:
        return usage
    assert usage.restored.seconds > 0
    return replace(usage, restored=replace(usage.restored, seconds=0.0))


def ask(tiered: TieredEngine, name: str, num_tokens: int = 33, max_tokens: int = 4) -> Answer:
    tiered.engine.add(make_request(name, prompt(num_tokens), max_tokens))
    return tiered.run()[name]


def load_one_block_in_each_step(tiered: TieredEngine) -> None:
    """Beside one that decodes."""
    tiered.desk.pace.record(1, 10.0)  # a block takes longer than any step
    model = tiered.engine._step_limits.step_times
    model._num_prefills = model._num_decodes = 100


def test_an_evicted_prefix_comes_back_from_the_node() -> None:
    tiered = make_tiered(num_blocks=20)
    first = ask(tiered, "first")
    evict_all(tiered)

    again = ask(tiered, "again")

    assert again.token_ids == first.token_ids
    assert usage_of(again) == Usage(33, 32, 4, restored=RestoredTokens(host=32))
    num_loads = [len(plan.loads) for plan in tiered.runner.plans]
    assert sum(num_loads) == max(num_loads) == 8  # nobody decodes: all at once
    assert tiered.node.leases == {}


def test_records_tell_how_much_of_a_prompt_was_restored() -> None:
    tiered = make_tiered(num_blocks=20)
    ask(tiered, "first")
    evict_all(tiered)
    tiered.engine.add(make_request("again", prompt(33), 1))
    tiered.engine.poll_tiers()

    events = []
    while tiered.engine.has_work:
        events += [note.event for note in tiered.engine.step().notes]

    assert [e.value for e in events if e.kind == "restored_host"] == [32]


def test_a_sequence_computes_nothing_in_the_plan_that_loads_for_it() -> None:
    tiered = make_tiered(num_blocks=20)
    ask(tiered, "first")
    evict_all(tiered)
    ask(tiered, "again")

    [loading] = [plan for plan in tiered.runner.plans if plan.loads]
    after = tiered.runner.plans[tiered.runner.plans.index(loading) + 1]
    assert not loading.scheduled
    assert not loading.admissions
    assert [entry.start for entry in after.scheduled] == [32]
    assert len(after.admissions) == 1


def test_restored_blocks_are_shared_with_others() -> None:
    tiered = make_tiered(num_blocks=40)
    ask(tiered, "first")
    evict_all(tiered)
    ask(tiered, "again")
    num_fetches = len(tiered.node.of(Fetch))

    third = ask(tiered, "third")

    assert usage_of(third) == Usage(33, 32, 4)
    assert len(tiered.node.of(Fetch)) == num_fetches + 1  # the node learns of the use
    assert tiered.node.of(Fetch)[-1].num_held == 8  # type: ignore[union-attr]


def test_a_whole_prompt_that_was_stored_still_computes_its_last_token() -> None:
    tiered = make_tiered(num_blocks=20)
    first = ask(tiered, "first", num_tokens=32)
    evict_all(tiered)

    again = ask(tiered, "again", num_tokens=32)

    assert again.token_ids == first.token_ids
    assert usage_of(again) == Usage(32, 31, 4, restored=RestoredTokens(host=31))


def test_two_requests_may_restore_the_same_blocks_at_once() -> None:
    tiered = make_tiered(num_blocks=40)
    first = ask(tiered, "first")
    evict_all(tiered)
    tiered.engine.add(make_request("a", prompt(33)))
    tiered.engine.add(make_request("b", prompt(33)))

    answers = tiered.run()

    assert answers["a"].token_ids == answers["b"].token_ids == first.token_ids
    assert usage_of(answers["b"]) == Usage(33, 32, 4, restored=RestoredTokens(host=32))


@pytest.mark.parametrize("index", [0, 3, 7])
def test_an_image_that_is_not_sound_is_computed_and_reported(index: int) -> None:
    tiered = make_tiered(num_blocks=20)
    first = ask(tiered, "first")
    evict_all(tiered)
    bad = make_request("again", prompt(33)).block_keys[index]
    tiered.node.corrupt(bad)

    again = ask(tiered, "again")

    assert again.token_ids == first.token_ids
    restored = RestoredTokens(host=4 * index) if index else None
    assert usage_of(again) == Usage(33, 4 * index, 4, restored=restored)
    assert tiered.node.of(Loaded)[-1].bad_keys == [bad]  # type: ignore[union-attr]
    assert tiered.engine.stats.tiers is not None
    assert tiered.engine.stats.tiers.num_failed_blocks == {"host": 1}


def test_images_of_other_tokens_are_never_used() -> None:
    tiered = make_tiered(num_blocks=20)
    first = ask(tiered, "first")
    evict_all(tiered)
    keys = make_request("again", prompt(33)).block_keys
    tiered.node.swap(keys[1], keys[2])

    again = ask(tiered, "again")

    assert again.token_ids == first.token_ids
    assert again.usage is not None
    assert again.usage.cached_tokens == 4


def test_a_request_waits_for_the_node_and_counts_as_waiting() -> None:
    tiered = make_tiered(num_blocks=20, node=FakeNode(is_silent=True))
    tiered.engine.add(make_request("a", prompt(33)))

    assert tiered.engine.load.num_waiting == 1
    assert not tiered.engine.has_work
    assert tiered.engine.load.num_waiting_tokens == 33
    assert tiered.desk.expires_s == pytest.approx(2.1)
    tiered.node.answer()
    assert len(tiered.run()["a"].token_ids) == 4


def test_a_node_that_does_not_answer_costs_no_more_than_the_time_limit() -> None:
    tiered = make_tiered(num_blocks=20, node=FakeNode(is_silent=True))
    tiered.engine.add(make_request("a", prompt(33)))
    tiered.turn()
    assert not tiered.engine.has_work

    tiered.clock.now_s = 2.2
    answers = tiered.run()

    assert len(answers["a"].token_ids) == 4
    assert tiered.node.of(Cancel) == [Cancel(1)]
    assert tiered.engine.stats.tiers is not None
    assert tiered.engine.stats.tiers.num_timeouts == 1


def test_a_node_that_stays_silent_is_left_and_nobody_waits_for_it() -> None:
    tiered = make_tiered(num_blocks=20, node=FakeNode(is_silent=True))
    for number, arrival_s in enumerate((0.0, 1.0, 2.5)):
        tiered.clock.now_s = arrival_s
        tiered.engine.add(make_request(f"r{number}", prompt(33, first=3 + number)))
        tiered.turn()
    for now_s in (2.2, 3.2, 4.7):
        tiered.clock.now_s = now_s
        tiered.turn()
    assert not tiered.node.is_up  # for more than twice the time limit

    assert len(tiered.run()) == 3
    ask(tiered, "next")
    assert len(tiered.node.of(Fetch)) == 3


def test_a_node_that_had_nothing_to_say_before_is_not_left_for_one_slow_answer() -> None:
    tiered = make_tiered(num_blocks=20, node=FakeNode(is_silent=True))
    tiered.clock.now_s = 60.0
    tiered.engine.add(make_request("a", prompt(33)))
    tiered.clock.now_s = 62.2
    tiered.run()

    assert tiered.node.is_up


@pytest.mark.parametrize("offset", [-4096, -1, 64 * LAYOUT.image_bytes - 1, 1 << 62])
def test_a_node_that_grants_slots_outside_of_its_arena_is_left(offset: int) -> None:
    tiered = make_tiered(num_blocks=20)
    tiered.node.news.append(Slots([0, offset]))

    answer = ask(tiered, "a")
    evict_all(tiered)

    assert len(answer.token_ids) == 4
    assert not tiered.node.is_up
    assert tiered.engine.stats.num_failed_steps == 0


@pytest.mark.parametrize("offset", [-4096, 1 << 62])
def test_a_node_that_finds_images_outside_of_its_arena_is_left(offset: int) -> None:
    tiered = make_tiered(num_blocks=20, node=FakeNode(is_silent=True))
    tiered.engine.add(make_request("a", prompt(33)))
    key = tiered.node.unanswered[0].keys[0]
    tiered.node.news.append(Fetched(1, [Found(offset, key, BLOCK_SIZE, TierKind.HOST)], 0, 0))

    answer = tiered.run()["a"]

    assert usage_of(answer) == Usage(33, 0, 4)
    assert not tiered.node.is_up


@pytest.mark.parametrize("num_tokens", [-1, 0, 2, BLOCK_SIZE + 1, 1 << 62])
def test_a_partial_image_of_another_length_than_asked_for_is_not_used(num_tokens: int) -> None:
    tiered = make_tiered(num_blocks=20, node=FakeNode(is_silent=True))
    request = replace(make_request("a", prompt(33)), breakpoints=[CacheBreakpoint(3, 60.0)])
    tiered.engine.add(request)
    [partial] = tiered.node.unanswered[0].partials
    image = Found(0, partial.key, num_tokens, TierKind.HOST)
    tiered.node.leases[1] = [partial.key]
    tiered.node.news.append(Fetched(1, [image], 0, 0))

    usage = usage_of(tiered.run()["a"])

    assert (usage.cached_tokens, usage.restored) == (0, None)
    assert tiered.engine.stats.num_failed_steps == 0
    assert tiered.node.leases == {}


def test_who_waits_for_the_node_keeps_the_place_of_its_arrival() -> None:
    tiered = make_tiered(make_config(max_num_seqs=1), node=FakeNode(is_silent=True))
    tiered.engine.add(make_request("early", prompt(33)))
    tiered.engine.add(make_request("late", [3, 5]))  # no full block: nothing to ask for
    tiered.node.answer()

    tiered.engine.poll_tiers()
    tiered.engine.step()

    assert [s.request.request_id for s in tiered.engine._scheduler.running] == ["early"]


def test_an_abort_while_it_waits_cancels_the_fetch() -> None:
    tiered = make_tiered(node=FakeNode(is_silent=True))
    tiered.engine.add(make_request("a", prompt(33), num_samples=2))
    tiered.engine.abort("a", index=0)
    assert tiered.node.of(Cancel) == []
    tiered.engine.abort("a")

    answers = tiered.run()

    assert {a.finish_reason for a in answers.values()} == {FinishReason.ABORT}
    assert tiered.node.of(Cancel) == [Cancel(1)]
    assert tiered.node.unanswered == []


def test_an_abort_of_one_with_images_ends_their_lease() -> None:
    tiered = make_tiered(make_config(max_num_seqs=1), num_blocks=20)
    ask(tiered, "first")
    evict_all(tiered)
    tiered.engine.add(make_request("busy", [3, 5], max_tokens=30))
    tiered.turn()
    tiered.engine.add(make_request("a", prompt(33)))
    tiered.turn()
    assert len(tiered.node.leases) == 1
    tiered.engine.abort("a")

    tiered.run()

    assert tiered.node.leases == {}


def test_an_abort_amid_its_loads_tells_what_was_restored_so_far() -> None:
    tiered = make_tiered(num_blocks=24)
    ask(tiered, "first")
    evict_all(tiered)
    load_one_block_in_each_step(tiered)
    tiered.engine.add(make_request("stream", [3, 5], max_tokens=30))
    tiered.turn()
    tiered.turn()
    tiered.engine.add(make_request("a", prompt(33)))
    tiered.turn()
    tiered.turn()
    tiered.engine.abort("a")

    usage = usage_of(tiered.run()["a"])

    assert usage.restored is not None
    assert usage.restored.host == usage.cached_tokens == 2 * BLOCK_SIZE
    assert tiered.node.leases == {}


def test_a_deadline_ends_a_request_that_waits_for_the_node() -> None:
    tiered = make_tiered(node=FakeNode(is_silent=True))
    tiered.engine.add(make_request("a", prompt(33), timeout_s=0.5))
    tiered.clock.now_s = 0.7

    assert tiered.run()["a"].finish_reason is FinishReason.TIMEOUT


def test_without_the_node_the_engine_computes() -> None:
    tiered = make_tiered(num_blocks=20)
    first = ask(tiered, "first")
    evict_all(tiered)
    tiered.node.is_silent = True
    tiered.engine.add(make_request("again", prompt(33)))
    tiered.node.go_down()

    again = tiered.run()["again"]

    assert again.token_ids == first.token_ids
    assert usage_of(again) == Usage(33, 0, 4)


def test_a_node_that_comes_back_is_used_again() -> None:
    tiered = make_tiered(num_blocks=20)
    ask(tiered, "first")
    tiered.node.go_down()
    tiered.run()
    tiered.node.come_up()
    tiered.run()
    evict_all(tiered)

    again = ask(tiered, "again")

    assert usage_of(again) == Usage(33, 32, 4, restored=RestoredTokens(host=32))


def test_nobody_keeps_the_arena_of_a_node_that_is_gone() -> None:
    runner = make_runner(64)
    tiered = make_tiered(inner=runner)
    ask(tiered, "a")
    transfer = weakref.ref(runner._attached)
    assert not tiered.node.arena.is_closed
    tiered.node.go_down()
    tiered.turn()

    assert transfer() is None
    assert tiered.node.arena.is_closed


def test_an_arena_that_the_runner_can_not_use_leaves_the_engine_without_tiers() -> None:
    def refuse(arena: memoryview) -> None:
        raise MemoryError("the device takes no more")

    node = FakeNode()
    engine = make_engine()
    engine.use_tiers(TierDesk(node, refuse, lambda: None, LAYOUT))
    engine.poll_tiers()

    assert not node.is_up
    assert node.arena.is_closed
    engine.add(make_request("a", prompt(33)))
    assert len(run_to_end(engine)["a"].token_ids) == 4
    assert node.of(Fetch) == []


def test_a_request_whose_time_is_up_asks_for_nothing() -> None:
    tiered = make_tiered()
    tiered.engine.add(make_request("a", prompt(33), timeout_s=0.0))

    assert tiered.run()["a"].finish_reason is FinishReason.TIMEOUT
    assert tiered.node.of(Fetch) == []


def test_a_used_block_is_stored_a_second_time_only_when_the_node_lost_it() -> None:
    tiered = make_tiered(num_blocks=40)
    ask(tiered, "first", num_tokens=9)
    assert tiered.node.images == {}
    ask(tiered, "second", num_tokens=9)
    keys = make_request("x", prompt(9)).block_keys
    assert set(tiered.node.images) == set(keys)
    num_stores = len(tiered.node.of(Store))
    ask(tiered, "third", num_tokens=9)
    assert len(tiered.node.of(Store)) == num_stores

    tiered.node.discard(keys[0])
    ask(tiered, "fourth", num_tokens=9)

    assert set(tiered.node.images) == set(keys)


def test_what_will_be_evicted_next_is_stored_ahead_the_begin_of_a_chain_first() -> None:
    tiered = make_tiered(num_blocks=20, node=FakeNode(stock=3))
    request = make_request("a", prompt(60), max_tokens=1)

    tiered.engine.add(request)
    tiered.run()

    # Five blocks are blank, and half of all are looked after: the last five of the chain.
    assert list(tiered.node.images) == request.block_keys[10:]
    evict_all(tiered)
    assert tiered.desk.writer.num_dropped == 7  # of the ten before them three found slots
    assert request.block_keys[2] in tiered.node.images
    assert request.block_keys[3] not in tiered.node.images


def test_stores_that_can_wait_take_little_of_a_step_that_computes() -> None:
    tiered = make_tiered(node=FakeNode(stock=40), num_blocks=128)
    ask(tiered, "first", num_tokens=120)
    tiered.desk.pace.block_s = 0.0008
    tiered.desk.pace.record = lambda num_blocks, seconds: None  # type: ignore[method-assign]
    tiered.engine.add(make_request("again", prompt(120), max_tokens=5))
    tiered.run()

    num_stores = [len(plan.stores) for plan in tiered.runner.plans if plan.stores]
    assert num_stores == [1, 1, 1, 1, 1, 12, 12, 1]  # more when nobody waits for it


def test_what_finds_no_slot_is_dropped_and_counted() -> None:
    tiered = make_tiered(num_blocks=20, node=FakeNode(num_images=3))
    ask(tiered, "first")

    evict_all(tiered)

    assert len(tiered.node.images) == 3
    assert tiered.engine.stats.tiers is not None
    assert tiered.engine.stats.tiers.num_dropped_blocks > 0


def test_a_failed_step_keeps_its_slots() -> None:
    inner = make_runner(20, max_step_tokens=40)
    tiered = make_tiered(make_config(max_num_batched_tokens=80), num_blocks=20, inner=inner)
    ask(tiered, "first")
    num_slots = len(tiered.desk.writer._slots)
    tiered.engine.add(make_request("large", prompt(76, first=4), max_tokens=1))

    tiered.turn()  # evicts, and is out of memory
    assert tiered.runner.plans[-1].stores
    assert len(tiered.desk.writer._slots) == num_slots
    assert len(tiered.run()["large"].token_ids) == 1


class NoRoomForLoads(PacedRunner):
    def execute(self, plan: StepPlan) -> StepResult:
        if plan.loads:
            raise StepOutOfMemory("no room to load")
        return super().execute(plan)


def test_a_prompt_whose_images_can_not_be_loaded_is_computed() -> None:
    inner = NoRoomForLoads(
        PacedConfig(),
        num_blocks=20,
        block_size_tokens=BLOCK_SIZE,
        vocab_size=VOCAB_SIZE,
        eos_token_ids=[EOS],
        sleep=lambda _: None,
    )
    tiered = make_tiered(num_blocks=20, inner=inner)
    first = ask(tiered, "first")
    evict_all(tiered)

    again = ask(tiered, "again")

    assert again.token_ids == first.token_ids
    assert usage_of(again) == Usage(33, 0, 4)
    assert tiered.node.leases == {}


def test_an_answer_that_is_complete_is_told_and_one_that_is_aborted_is_not() -> None:
    tiered = make_tiered()
    tiered.engine.add(make_request("aborted", prompt(9)))
    tiered.turn()
    tiered.engine.abort("aborted")
    tiered.run()
    assert tiered.node.of(Ended) == []

    ask(tiered, "a", num_tokens=9, max_tokens=8)

    [ended] = tiered.node.of(Ended)
    assert isinstance(ended, Ended)
    assert len(ended.keys) == 4
    assert ended.last_key == ended.keys[-1]
    assert ended.keys[:2] == make_request("x", prompt(9)).block_keys


def test_what_another_node_wants_is_stored_and_then_told() -> None:
    tiered = make_tiered()
    ask(tiered, "a", num_tokens=9)
    keys = make_request("x", prompt(9)).block_keys

    tiered.node.news.append(Export(7, [*keys, bytes(16)]))
    tiered.run()

    assert set(tiered.node.images) == set(keys)
    assert tiered.node.of(Exported) == [Exported(7)]


def test_all_kept_blocks_are_stored_when_a_replica_leaves() -> None:
    tiered = make_tiered(node=FakeNode(stock=2))
    ask(tiered, "a")

    tiered.engine.store_kept()
    tiered.run()

    assert tiered.desk.writer.num_wanted == 0
    assert set(make_request("x", prompt(33)).block_keys) <= set(tiered.node.images)


def test_a_checked_request_recomputes_one_block_and_compares_it() -> None:
    tiered = make_tiered(num_blocks=20, check_period=1)
    first = ask(tiered, "first")
    evict_all(tiered)

    again = ask(tiered, "again")

    assert again.token_ids == first.token_ids
    assert usage_of(again) == Usage(33, 28, 4, restored=RestoredTokens(host=28))
    assert sum(len(plan.comparisons) for plan in tiered.runner.plans) == 1
    assert tiered.engine.stats.tiers is not None
    assert tiered.engine.stats.tiers.num_checks == 1
    assert tiered.engine.stats.tiers.num_differing == 0
    assert tiered.node.leases == {}


def test_an_image_that_differs_from_what_is_computed_is_given_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tiered = make_tiered(num_blocks=20, check_period=1)
    first = ask(tiered, "first")
    evict_all(tiered)
    bad = make_request("again", prompt(33)).block_keys[-1]
    tiered.node.corrupt(bad)

    again = ask(tiered, "again")

    assert again.token_ids == first.token_ids
    assert bad not in tiered.node.images
    assert tiered.engine.stats.tiers is not None
    assert tiered.engine.stats.tiers.num_differing == 1
    assert "is not what the node's cache (host) holds" in caplog.text


def test_loads_share_a_step_with_decodes_only_as_far_as_streams_allow() -> None:
    tiered = make_tiered(num_blocks=40)
    first = ask(tiered, "first")
    evict_all(tiered)
    load_one_block_in_each_step(tiered)
    tiered.engine.add(make_request("stream", [3, 5], max_tokens=40))
    tiered.turn()
    tiered.turn()

    again = ask(tiered, "again")

    assert again.token_ids == first.token_ids
    assert max(len(plan.loads) for plan in tiered.runner.plans) == 1
    assert sum(len(plan.loads) for plan in tiered.runner.plans) == 8


def test_predictions_that_held_are_counted() -> None:
    node = FakeNode(kind=TierKind.DISK, predicted_s=0.1, fetch_s=0.11)
    tiered = make_tiered(num_blocks=20, node=node)
    ask(tiered, "first")
    evict_all(tiered)

    again = ask(tiered, "again")
    node.fetch_s = 0.2
    evict_all(tiered)
    ask(tiered, "third")

    assert usage_of(again).restored == RestoredTokens(disk=32, predicted_s=0.1)
    stats = tiered.engine.stats.tiers
    assert stats is not None
    assert (stats.num_predictions, stats.num_good_predictions) == (3, 1)  # the filler's, too
    assert set(stats.num_loaded_blocks) == {"disk"}


def test_the_node_is_told_what_computing_would_take() -> None:
    tiered = make_tiered(make_config(max_num_batched_tokens=32), node=FakeNode(is_silent=True))
    model = tiered.engine._step_limits.step_times
    model._num_prefills = model._num_decodes = 100
    model.base_s, model.per_prefill_token_s, model.per_attended_token_s = 0.01, 0.001, 1e-6
    tiered.engine.add(make_request("first", prompt(60)))
    tiered.engine.add(make_request("second", prompt(60, first=4)))

    alone, behind = (f.cost for f in tiered.node.of(Fetch) if isinstance(f, Fetch))

    assert alone == RecomputeCost(0.01, 32, 0.001, 1e-6, queue_s=0.0)
    assert behind.queue_s == pytest.approx(60 * 0.001 + 2 * 0.01)
