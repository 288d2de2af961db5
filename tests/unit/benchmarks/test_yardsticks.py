"""The adapter for an independent replay decides as the live gateway does."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from app.fleet import Fleet
from app.member import Member
from app.queue import Job, WaitingQueue
from app.routing.stride_remainder import StrideRemainder
from app.text.tokenization import Prompt
from benchmarks import yardsticks
from cache_tiers.keys import BlockKey, block_keys
from engine.messages import KEY_STRIDE, CacheSnapshot, LoadView, SamplingParams
from tests.unit.app.dispatch_bench import Recorder
from tests.unit.app.fakes import FakeEngine, make_card

BLOCK_TOKENS = 512
"""Of the replay; as many as an index key of the gateway stands for."""
CAPACITY_BLOCKS = 6000
SPEED = 6000.0
CARD = msgspec.structs.replace(
    make_card(max_model_len=10**6), block_size_tokens=BLOCK_TOKENS // KEY_STRIDE
)
ROOT_KEY = BlockKey(CARD.root_key)


@dataclass(frozen=True)
class Worker:
    """As the replay shows one."""

    wait_s: float
    kv_blocks: int
    told_size: int
    num_matching: int
    num_beyond: float
    """Blocks behind the last key that match, as the gateway expects."""
    capacity_blocks: int = CAPACITY_BLOCKS

    def match(self, blocks: Sequence[int]) -> float:
        return self.num_matching + self.num_beyond


def random_workers(draw: random.Random, num_blocks: int) -> list[Worker]:
    has_queues, is_warm = draw.random() < 0.7, draw.random() < 0.8
    remainder = StrideRemainder(KEY_STRIDE)
    workers = []
    for _ in range(draw.randint(2, 12)):
        num_matching = draw.choice((0, draw.randint(0, num_blocks))) if is_warm else 0
        beyond = remainder.expected_blocks(num_matching, num_blocks * KEY_STRIDE) / KEY_STRIDE
        wait_s = draw.expovariate(1.0) if has_queues else 0.0
        kv_blocks = draw.randint(0, CAPACITY_BLOCKS)
        told_size = draw.randint(0, 2 * CAPACITY_BLOCKS)
        workers.append(Worker(wait_s, kv_blocks, told_size, num_matching, beyond))
    return workers


def live_choice(workers: Sequence[Worker], prompt: Prompt, rotation: int) -> int:
    fleet = Fleet(1 << 20, clock=lambda: 1.0, first_rotation=rotation)
    for number, worker in enumerate(workers):
        card = msgspec.structs.replace(CARD, engine_id=f"{number:04}")
        engine = FakeEngine(card=card)
        engine.load = LoadView(
            pending_prefill_tokens=int(worker.wait_s * SPEED),
            num_free_blocks=KEY_STRIDE * (CAPACITY_BLOCKS - worker.kv_blocks),
            num_blocks=KEY_STRIDE * CAPACITY_BLOCKS,
            prefill_tokens_per_s=SPEED,
            num_cached_prompt_tokens=yardsticks._totals["cached"],
            num_prompt_tokens=yardsticks._totals["prompt"],
            num_empty_blocks=KEY_STRIDE * max(0, CAPACITY_BLOCKS - worker.told_size),
        )
        member = Member(engine)  # answers count for nothing in the replay
        fleet.add(member)
        fleet.see_step(member, None)
        fleet.see_snapshot(member, CacheSnapshot(0, prompt.index_keys[: worker.num_matching]))
    job = Job("r", prompt, SamplingParams(max_tokens=5), Recorder(), arrived_s=0.0, deadline_s=9.0)
    chosen = fleet.choose(job, WaitingQueue())
    assert chosen is not None
    return int(chosen.engine_id)


def test_a_thousand_random_fleets_are_judged_alike() -> None:
    draw = random.Random(1)
    yardsticks._totals.clear()
    chosen_places, num_hits = set(), 0
    for number in range(1000):
        num_blocks = draw.randint(1, 4)
        token_ids = [number] * (num_blocks * BLOCK_TOKENS)
        keys = list[bytes](block_keys(ROOT_KEY, token_ids, CARD.block_size_tokens))
        prompt = Prompt(token_ids, ROOT_KEY, keys, ROOT_KEY)
        workers = random_workers(draw, num_blocks)
        live = live_choice(workers, prompt, rotation=number)
        request = {
            "gateway": 0,
            "arrival_s": float(number),
            "input_tokens": len(token_ids),
            "blocks": [],
            "prefill_tps": SPEED,
            "pull_tps": 0.0,  # what live engines are told to do, too
        }
        assert yardsticks.choose(request, workers) == (live, live)
        chosen_places.add(live)
        num_hits += workers[live].num_matching > 0
    assert len(chosen_places) == 12
    assert 200 < num_hits < 900
