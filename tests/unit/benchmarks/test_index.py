"""The traffic that the index is measured with, and the shape of what is reported."""

from app.routing.index import PrefixIndex
from benchmarks.index import Scale, measure_bound, measure_long_prompt, measure_traffic
from benchmarks.index_fleet import NUM_ENGINES, NUM_PROMPT_KEYS, LongPromptFleet
from benchmarks.index_workload import CHAIN_KEYS, CacheTraffic, decode_snapshot

ROOM_BYTES = 1 << 24
SCALE = Scale(num_rounds=1, steps_per_round=20, keys_per_replica=240, num_decisions=2)


def test_an_index_that_follows_the_traffic_holds_what_full_caches_hold() -> None:
    traffic = CacheTraffic(5, 10 * CHAIN_KEYS, seed=1)
    index = PrefixIndex(ROOM_BYTES)
    held: dict[str, list[bytes]] = {}
    for engine_id, payload in traffic.snapshots():
        snapshot = decode_snapshot(payload)
        assert len(snapshot.keys) == 10 * CHAIN_KEYS
        index.seed(engine_id, snapshot)
        held[engine_id] = snapshot.keys
    for step in traffic.steps(200):
        assert not index.apply(step.engine_id, step.events)
        assert step.events.evicted == held[step.engine_id][:CHAIN_KEYS]
        held[step.engine_id] = held[step.engine_id][CHAIN_KEYS:] + step.events.stored
        assert len(index.match(step.events.stored)) >= 1
    assert len(index) <= len({key for keys in held.values() for key in keys})
    index.check_integrity()


def test_replicas_hold_a_long_prompt_up_to_places_of_their_own_or_with_gaps() -> None:
    for is_fragmented in (False, True):
        bench = LongPromptFleet(is_fragmented=is_fragmented, seed=2)
        job = bench.arrive()
        matching = bench.fleet.index.match(job.prompt.index_keys)
        assert len(matching) == NUM_ENGINES
        assert len(set(matching.values())) >= NUM_ENGINES / 2
        is_whole = matching["engine-0"].accelerator == NUM_PROMPT_KEYS
        assert is_whole == is_fragmented
        bench.send(job)
        assert bench.fleet.index.match(job.prompt.index_keys) != matching
        bench.settle(job)
        assert bench.fleet.index.match(job.prompt.index_keys) == matching
        bench.choose(job)


def test_every_question_is_answered_once() -> None:
    cases = [measure_bound(CacheTraffic(3, 240, seed=0))]
    cases += measure_traffic("cell", CacheTraffic(3, 240, seed=0), SCALE)
    cases += measure_long_prompt("prefixes", SCALE, is_fragmented=False, seed=0)
    assert len({case.case for case in cases}) == len(cases) == 16
    assert all(case.value > 0 for case in cases)
