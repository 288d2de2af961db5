"""A failure at any point of what KV tiers add to planning ends the requests that are here with an
error, and nothing else: blocks are free, and the same prompts get their right answers afterwards,
with whatever the node holds by then.
"""

import pytest
from msgspec.structs import replace

from cache_tiers.messages import Export
from engine.messages import CacheBreakpoint, EngineRequest, FinishReason
from tests.unit.engine.fakes import Answer, answers_alone, make_config, make_request
from tests.unit.engine.test_engine_failures import Point, Tracer, quiet_log  # noqa: F401
from tests.unit.engine.tier_fakes import FakeNode, TieredEngine, make_tiered

NUM_BLOCKS = 24
PROMPTS = {
    "plain": [3, *range(10, 40)],
    "pinned": [4, *range(10, 31)],
    "samples": [5, *range(10, 33)],
    "aborted": [6, *range(10, 40)],
}


class TierTracer(Tracer):
    files = (
        "breakpoints.py",
        "fetches.py",
        "leases.py",
        "restore_planner.py",
        "restores.py",
        "store_planner.py",
        "tier_desk.py",
        "write_policy.py",
    )
    entries = frozenset({"begin", "plan_loads", "plan_check", "take", "commit", "end", "poll"})


def request(name: str, suffix: str) -> EngineRequest:
    made = make_request(name + suffix, PROMPTS[name], 6, num_samples=2 if name == "samples" else 1)
    if name == "pinned":
        return replace(made, breakpoints=[CacheBreakpoint(8, 60.0), CacheBreakpoint(18, 60.0)])
    return made


def evict_all(tiered: TieredEngine, name: str) -> None:
    tiered.engine.add(make_request(name, [7] * (NUM_BLOCKS * 4 - 1), max_tokens=1))
    tiered.run()


def play(tiered: TieredEngine, tracer: Tracer) -> dict[str, Answer]:
    """Stores, loads, a check, pins, an export, an abort amid loads."""
    for name in PROMPTS:
        tiered.engine.add(request(name, "-first"))
        tiered.run()
    evict_all(tiered, "filler")
    tiered.desk.pace.record(1, 10.0)
    tiered.node.news.append(Export(1, [*tiered.engine._blocks.kept_keys[:3]]))
    for name in PROMPTS:
        tiered.engine.add(request(name, ""))
    for number in range(200):
        with tracer.active():
            tiered.turn()
            if number == 2:
                tiered.engine.abort("aborted")
        if not tiered.engine.has_work and not tiered.node.news:
            break
    return {n: a for n, a in tiered.answers.items() if n.partition("#")[0] in PROMPTS}


def make_small() -> TieredEngine:
    node = FakeNode(num_images=100, stock=12)
    return make_tiered(make_config(), node=node, num_blocks=NUM_BLOCKS, check_period=1)


@pytest.mark.usefixtures("quiet_log")
def test_a_failure_anywhere_in_what_tiers_do_leaves_all_free_and_answers_right() -> None:
    right = {name: answers_alone(replace(request(name, ""), breakpoints=[])) for name in PROMPTS}
    census, tiered = TierTracer(), make_small()
    play(tiered, census)
    stats = tiered.engine.stats.tiers
    assert stats is not None
    assert stats.num_checks > 0
    assert stats.num_loaded_blocks["host"] > 10
    places = sorted(census.counts.items())[::8]  # many statements have several lines
    assert len(places) > 20

    for place, count in places:
        tracer, tiered = TierTracer(Point(*place, nth=(count + 1) // 2)), make_small()
        answers = play(tiered, tracer)

        assert tracer.has_raised, place
        assert tiered.engine.stats.num_failed_steps == 1, place
        assert answers.keys() == {*PROMPTS, "samples#1"}
        for name, answer in answers.items():
            assert answer.finish_reason is not None
            expected = right[name.partition("#")[0]][name].token_ids
            assert answer.token_ids == expected[: len(answer.token_ids)]
            assert (answer.error is None) == (answer.finish_reason is not FinishReason.ERROR)
        assert tiered.engine.load.num_free_blocks == NUM_BLOCKS
        evict_all(tiered, "filler-again")
        for name in PROMPTS:
            tiered.engine.add(request(name, "-again"))
        again = tiered.run()
        assert tiered.engine.stats.num_failed_steps == 1, place
        for name in PROMPTS:
            assert again[f"{name}-again"].token_ids == right[name][name].token_ids, place
