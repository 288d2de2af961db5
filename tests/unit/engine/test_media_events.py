"""Events of the node's media, as routers get them: one count over all media of a replica."""

from itertools import count

from cache_tiers.messages import MediaEvents
from cache_tiers.tier import TierKind
from engine.media_events import MediaEventLog
from engine.messages import KEY_STRIDE, CacheEvents, Medium
from tests.unit.engine.fakes import BLOCK_SIZE, make_request
from tests.unit.engine.tier_fakes import make_tiered

A, B, C = b"a" * 16, b"b" * 16, b"c" * 16


def test_host_and_disk_become_media_and_other_nodes_do_not() -> None:
    log = MediaEventLog()
    log.add(MediaEvents(TierKind.HOST, [A], []))
    log.add(MediaEvents(TierKind.PEER, [B], []))
    log.add(MediaEvents(TierKind.DISK, [B], [C]))
    log.add(MediaEvents(TierKind.DISK, [], []))

    numbers = count(5)
    assert log.take(numbers) == [
        CacheEvents(5, [A], [], Medium.HOST),
        CacheEvents(6, [B], [C], Medium.DISK),
    ]
    assert log.take(numbers) == []


def test_all_that_a_lost_node_held_is_told_as_evicted() -> None:
    log = MediaEventLog()
    log.add(MediaEvents(TierKind.HOST, [A, B], []))
    log.add(MediaEvents(TierKind.HOST, [], [A]))
    log.take(count(1))

    log.forget()
    log.forget()

    assert log.take(count(3)) == [CacheEvents(3, [], [B], Medium.HOST)]


def test_one_count_runs_over_all_media_of_an_engine() -> None:
    tiered = make_tiered()
    tiered.node.news.append(MediaEvents(TierKind.HOST, [A], []))
    [first] = tiered.engine.poll_tiers()
    tiered.engine.add(make_request("a", [3] * (BLOCK_SIZE * KEY_STRIDE), max_tokens=1))
    tiered.engine.poll_tiers()
    second = tiered.engine.step().events
    tiered.node.news.append(MediaEvents(TierKind.DISK, [B], [A]))
    [third] = tiered.engine.poll_tiers()

    assert second is not None
    assert [first.sequence, second.sequence, third.sequence] == [1, 2, 3]
    assert [first.medium, second.medium, third.medium] == [
        Medium.HOST,
        Medium.ACCELERATOR,
        Medium.DISK,
    ]
