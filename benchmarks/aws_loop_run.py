"""The scenario of the scaling loop: from no node to answers, through the loss of a spot node in the
middle of an answer, and back to no node; and what happens where there is no capacity at all.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from benchmarks.aws_loop_answers import Ask, Outcome
from benchmarks.aws_loop_cloud import ZONES
from benchmarks.aws_loop_cluster import MODEL, TWIN, LoopCluster

NUM_FIRST = 6
FIRST_TOKENS = 20
LONG_TOKENS = 900
"""45 s at the engine's pace: longer than another node takes to come."""
NOTICE_S = 25.0
"""Between the notice and the end of the instance; two minutes on EC2."""
_BETWEEN_S = 2.0
_LONG_PROMPT = "Tell me a long story about a lighthouse."
_ZERO_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class LoopFigures:
    """What was measured."""

    first_answer_s: float
    """From requests at no node to the first token."""
    all_answers_s: float
    """To the end of the last of them."""
    moved_pause_s: float
    """Longest pause in the answer whose node went away."""
    to_zero_s: float
    """From the plan of no replica to no instance."""
    num_requests: int
    failed: tuple[Outcome, ...]
    is_same_text: bool
    """Of the answer whose node went away, and an undisturbed one."""
    num_nodes: int
    """Ever launched."""
    zones: frozenset[str]
    """In which they were."""
    refused_zones: frozenset[str]
    """In which EC2 was asked for them in vain."""
    was_moved: bool
    """The node with the answer was gone before the answer ended."""


@dataclass(frozen=True, slots=True)
class RefusedFigures:
    """No capacity anywhere."""

    outcome: Outcome
    waited_s: float
    num_launched: int
    num_asked: int
    """Times that EC2 was asked for instances."""


def run_loop(cluster: LoopCluster) -> LoopFigures:
    """One zone has no capacity. Raises ``TimeoutError`` where something never comes."""
    cluster.cloud.refused_zones.add(ZONES[0])
    begun_s = time.monotonic()
    first = [
        Ask(cluster.url, MODEL, f"{number} ways to begin, please.", num_tokens=FIRST_TOKENS)
        for number in range(NUM_FIRST)
    ]
    outcomes = [ask.wait() for ask in first]
    all_s = time.monotonic() - begun_s
    moved, beside, was_moved = _lose_node(cluster)
    expected = Ask(cluster.url, TWIN, _LONG_PROMPT, num_tokens=LONG_TOKENS).wait()
    to_zero_s = _empty(cluster)
    outcomes += [moved, *beside, expected]
    tokens_s = [each.first_token_s for each in outcomes[:NUM_FIRST] if each.first_token_s]
    return LoopFigures(
        first_answer_s=min(tokens_s, default=float("inf")) - begun_s,
        all_answers_s=all_s,
        moved_pause_s=moved.longest_pause_s,
        to_zero_s=to_zero_s,
        num_requests=len(outcomes),
        failed=tuple(each for each in outcomes if each.error),
        is_same_text=bool(moved.text) and moved.text == expected.text,
        num_nodes=len(cluster.instances.seen_zones),
        zones=frozenset(cluster.instances.seen_zones),
        refused_zones=frozenset(cluster.cloud.refusals),
        was_moved=was_moved,
    )


def run_refused(cluster: LoopCluster, *, max_wait_s: float, watched_s: float) -> RefusedFigures:
    """Precondition: no node. The cluster stays without capacity."""
    cluster.cloud.refused_zones.update(ZONES)
    before, asked = len(cluster.cloud.workers()), len(cluster.cloud.fleets_asked)
    cluster.deploy(max_wait_s=max_wait_s)
    cluster.wait_until_running()
    begun_s = time.monotonic()
    outcome = Ask(cluster.url, MODEL, "Anybody there?", num_tokens=5).wait()
    waited_s = time.monotonic() - begun_s
    time.sleep(max(0.0, watched_s - waited_s))
    launched = len(cluster.cloud.workers()) - before
    num_asked = len(cluster.cloud.fleets_asked) - asked
    return RefusedFigures(outcome, waited_s, launched, num_asked)


def _lose_node(cluster: LoopCluster) -> tuple[Outcome, list[Outcome], bool]:
    """A long answer whose node gets a spot notice, and short ones meanwhile."""
    long = Ask(cluster.url, MODEL, _LONG_PROMPT, num_tokens=LONG_TOKENS)
    long.wait_for_first_token()
    (instance,) = cluster.instances.live
    cluster.instances.interrupt(instance, left_s=NOTICE_S)
    beside: list[Ask] = []
    done = threading.Event()
    was_moved = False
    while long.is_alive():
        prompt = f"And {len(beside)}?"
        beside.append(Ask(cluster.url, MODEL, prompt, num_tokens=3))
        done.wait(_BETWEEN_S)
        if long.is_alive():
            was_moved |= instance not in cluster.instances.live
    return long.wait(), [ask.wait() for ask in beside], was_moved


def _empty(cluster: LoopCluster) -> float:
    """The plan goes to no replica, as after ten minutes of no request; until no node is left."""
    begun_s = time.monotonic()
    cluster.deploy(num_replicas=0)
    while cluster.cloud.workers("pending", "running"):
        if time.monotonic() - begun_s > _ZERO_TIMEOUT_S:
            raise TimeoutError(f"nodes are left after {_ZERO_TIMEOUT_S:.0f} s")
        time.sleep(0.5)
    return time.monotonic() - begun_s
