"""Benchmark of what leaves the tiers first: ``HEADWATER_TRACES=DIR python -m benchmarks.tier_replay
--out FILE``.

Prompts of public traces go through the node's hierarchy (``cache_tiers.node_store``, whole but for
bytes: nothing is copied) whose memory is too small for them: token hit rate with each eviction
policy, beside two bounds. ``infinite`` keeps all; ``offline`` knows the future and keeps what is
used again soonest (Belady). ``--synthetic`` replays traffic made up here, and needs no files.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.result import BenchmarkResult, CaseResult
from benchmarks.routing import TracesMissing, find_traces
from benchmarks.routing_scenarios import coarsened
from benchmarks.routing_workload import CHAT
from cache_tiers.block_image import ImageLayout, make_fingerprint
from cache_tiers.config import NodeCacheConfig
from cache_tiers.eviction.create import PolicyName
from cache_tiers.keys import BlockKey
from cache_tiers.messages import Ended, Fetch, RecomputeCost, Stored
from cache_tiers.node_store import NodeStore
from cache_tiers.slabs import SlabAllocator
from deployments.environment import traces_folder
from engine.messages import KEY_STRIDE
from simulator.traces import read_agentic_coding, read_mooncake
from simulator.workload import Workload

POLICIES: tuple[PolicyName, ...] = ("value", "lru", "s3fifo", "arc")
TIMES_TOO_SMALL = (4, 16)
"""Distinct blocks of the trace over blocks that fit."""
AGENTIC_SESSIONS_PER_S = 0.05
ANSWER_TOKEN_S = 0.02
"""Before an answer of a session is complete, per token: its next prompt comes after it."""
COST = RecomputeCost(step_s=0.01, step_tokens=4096, token_s=1 / 6000)
PROMISED_POINTS = 0.05
"""Of the token hit rate, above LRU at a quarter of the memory."""
_SLOTS_PER_SLAB = 64


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request of a trace, as a tier sees it."""

    arrival_s: float
    num_tokens: int
    keys: Sequence[BlockKey]


@dataclass(frozen=True, slots=True)
class Trace:
    name: str
    block_size_tokens: int
    prompts: Sequence[Prompt]

    @property
    def num_blocks(self) -> int:
        """Distinct ones."""
        return len({key for prompt in self.prompts for key in prompt.keys})


class BlindArena:
    """Slots without memory."""

    def __init__(self, num_slots: int, image_bytes: int) -> None:
        num_slabs = max(1, num_slots // _SLOTS_PER_SLAB)
        self.slabs = SlabAllocator(num_slabs, _SLOTS_PER_SLAB * image_bytes)
        self.num_bytes = num_slabs * self.slabs.slab_bytes
        self.memory = memoryview(b"")
        self.allocate = self.slabs.allocate
        self.free = self.slabs.free
        self.slab_mates = self.slabs.slab_mates


def make_trace(name: str, workload: Workload) -> Trace:
    """Prompts in the order of their arrival; those of a session after the answer before them and
    the pause after that.
    """
    ready_s: dict[str, float] = {}
    prompts = []
    for request in workload.requests:
        arrival_s = request.arrival_s
        if request.session is not None and request.think_s is not None:
            arrival_s = ready_s.get(request.session, arrival_s) + request.think_s
        if request.session is not None:
            ready_s[request.session] = arrival_s + ANSWER_TOKEN_S * request.num_answer_tokens
        keys = list(dict.fromkeys(map(BlockKey, request.block_keys)))
        prompts.append(Prompt(arrival_s, request.num_prompt_tokens, keys))
    prompts.sort(key=lambda prompt: prompt.arrival_s)
    return Trace(name, workload.block_size_tokens, prompts)


async def replay(trace: Trace, policy: PolicyName, num_slots: int) -> float:
    """The share of prompt tokens that the arena had. Every block is stored once it is computed."""
    layout = ImageLayout(make_fingerprint(trace.name), 1, 4096, trace.block_size_tokens)
    now_s = 0.0
    store = NodeStore(
        BlindArena(num_slots, layout.image_bytes),
        disk=None,
        object_store=None,
        config=NodeCacheConfig(policy=policy),
        clock=lambda: now_s,
        image_bytes=layout.image_bytes,
    )
    num_hits = num_tokens = 0
    for prompt in trace.prompts:
        now_s = prompt.arrival_s
        fetch = Fetch(1, list(prompt.keys), 0, [], COST, 1.0)
        result = await store.fetch(layout, fetch, None)
        num_found = len(result.images)
        num_hits += min(num_found * trace.block_size_tokens, prompt.num_tokens)
        num_tokens += prompt.num_tokens
        _store_rest(store, layout, prompt.keys, num_found)
        store.release(layout, [found.offset for found in result.images])
        store.ended(layout, Ended(bytes(16), list(prompt.keys), ""))
        store.take_events(layout)
        store.take_gone(layout)
    store.check_integrity()
    return num_hits / num_tokens


def _store_rest(
    store: NodeStore, layout: ImageLayout, keys: Sequence[BlockKey], num_found: int
) -> None:
    """From the prompt's end on: it leaves before the beginning."""
    block_s = layout.block_size_tokens * COST.token_s
    for position in range(len(keys) - 1, num_found - 1, -1):
        for offset in store.grant(layout, 1):
            tokens = layout.block_size_tokens
            store.commit(layout, Stored(offset, keys[position], tokens, position + 1, block_s))


def infinite(trace: Trace) -> float:
    """The share of prompt tokens that were in a prompt before."""
    seen: set[BlockKey] = set()
    num_hits = num_tokens = 0
    for prompt in trace.prompts:
        num_hits += _hit_tokens(trace, prompt, seen)
        num_tokens += prompt.num_tokens
        seen.update(prompt.keys)
    return num_hits / num_tokens


def offline(trace: Trace, num_slots: int) -> float:
    """Belady's rule: whatever is used again last leaves, a prompt's end before its beginning."""
    never = len(trace.prompts)
    next_use: dict[BlockKey, int] = {}
    next_uses: list[list[int]] = []
    for number in range(never - 1, -1, -1):
        keys = trace.prompts[number].keys
        next_uses.append([next_use.get(key, never) for key in keys])
        next_use.update(dict.fromkeys(keys, number))
    held: dict[BlockKey, int] = {}
    heap: list[tuple[int, int, BlockKey]] = []
    num_hits = num_tokens = 0
    for prompt, uses in zip(trace.prompts, reversed(next_uses), strict=True):
        num_hits += _hit_tokens(trace, prompt, held)
        num_tokens += prompt.num_tokens
        for position, (key, use) in enumerate(zip(prompt.keys, uses, strict=True)):
            held[key] = use
            heapq.heappush(heap, (-use, -position, key))
        while len(held) > num_slots:
            use, _, key = heapq.heappop(heap)
            if held.get(key) == -use:
                del held[key]
    return num_hits / num_tokens


def _hit_tokens(trace: Trace, prompt: Prompt, held: dict[BlockKey, int] | set[BlockKey]) -> int:
    num_found = next((i for i, key in enumerate(prompt.keys) if key not in held), len(prompt.keys))
    return min(num_found * trace.block_size_tokens, prompt.num_tokens)


def measure(trace: Trace, times_too_small: Sequence[int]) -> list[CaseResult]:
    ceiling = infinite(trace)
    num_blocks = trace.num_blocks
    cases = [CaseResult(case=f"{trace.name}_infinite", value=ceiling, unit="share")]
    for times in times_too_small:
        num_slots = num_blocks // times // _SLOTS_PER_SLAB * _SLOTS_PER_SLAB
        best = offline(trace, num_slots)
        hits = {}
        for policy in POLICIES:
            begin_s = time.process_time()
            hits[policy] = asyncio.run(replay(trace, policy, num_slots))
            print(
                f"{trace.name:14} 1/{times:<3} {policy:8} hit {hits[policy]:.4f}"
                f"  offline {best:.4f}  infinite {ceiling:.4f}"
                f"  {time.process_time() - begin_s:6.1f} s",
                flush=True,
            )
        name = f"{trace.name}_{times}x"
        cases += [
            CaseResult(
                case=f"{name}_{policy}",
                value=hits[policy],
                unit="share",
                peer=None if policy == "lru" else "lru",
                peer_value=None if policy == "lru" else hits["lru"],
                limit=best,
            )
            for policy in POLICIES
        ]
        cases += _gains(name, hits["value"] - hits["lru"], best - hits["lru"])
    return cases


def _gains(name: str, ours: float, most: float) -> list[CaseResult]:
    """What the promise is about, and what of it any policy could reach."""
    return [
        CaseResult(case=f"{name}_over_lru", value=ours, unit="share", limit=PROMISED_POINTS),
        CaseResult(case=f"{name}_offline_over_lru", value=most, unit="share"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tier_replay", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="result file to write")
    parser.add_argument(
        "--synthetic", action="store_true", help="only traffic that is made up here; no files"
    )
    parser.add_argument(
        "--times-too-small", type=int, nargs="+", default=TIMES_TOO_SMALL, help="of the memory"
    )
    args = parser.parse_args()
    try:
        traces = [_synthetic()] if args.synthetic else _public(traces_folder())
    except TracesMissing as error:
        print(error, file=sys.stderr)
        return 2
    BenchmarkResult.of_this_machine(
        name="tier_replay",
        config={
            "times_too_small": list(args.times_too_small),
            "agentic_sessions_per_s": AGENTIC_SESSIONS_PER_S,
            "answer_token_s": ANSWER_TOKEN_S,
            "is_synthetic": args.synthetic,
        },
        seed=0,
        results=[case for trace in traces for case in measure(trace, args.times_too_small)],
    ).write(args.out)
    return 0


def _public(folder: Path | None) -> list[Trace]:
    conversation, agentic = find_traces(folder)
    recorded = read_agentic_coding(agentic, sessions_per_s=AGENTIC_SESSIONS_PER_S)
    coding = coarsened(recorded, KEY_STRIDE)
    return [
        make_trace("conversation", read_mooncake(conversation)),
        make_trace("agentic", coding),
    ]


def _synthetic() -> Trace:
    return make_trace("synthetic", CHAT.workload("synthetic", 3000, 2.0, seed=0))


if __name__ == "__main__":
    sys.exit(main())
