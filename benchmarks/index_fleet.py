"""A gateway's fleet of which each engine holds a part of one long prompt, for ``benchmarks.index``.

The fleet, its index and its policy are the gateway's own; engines are silent, each with a load view
of a replica that is about half busy.
"""

from __future__ import annotations

import random
import time
from typing import cast

from app.client import QUERY_TIMEOUT_S, DeltaSink, EngineClient
from app.fleet import Fleet
from app.member import Member
from app.queue import Answer, Job, WaitingQueue
from app.text.tokenization import Prompt
from benchmarks.index_workload import copied
from cache_tiers.keys import KEY_BYTES
from cache_tiers.rung import Rung
from engine.messages import (
    KEY_STRIDE,
    CacheSnapshot,
    EngineRequest,
    LoadView,
    Medium,
    ModelCard,
    QueryKind,
    SamplingParams,
)
from engine.rung_messages import RungOrder, RungState

NUM_ENGINES = 32
BLOCK_SIZE_TOKENS = 16
NUM_PROMPT_TOKENS = 131_072
NUM_PROMPT_KEYS = NUM_PROMPT_TOKENS // BLOCK_SIZE_TOKENS // KEY_STRIDE
_MAX_MODEL_LEN = 2 * NUM_PROMPT_TOKENS
_ROOT_KEY = b"root".rjust(KEY_BYTES)
_INDEX_MAX_BYTES = 1 << 30


class SilentEngine:
    """An ``EngineClient`` that is only looked at."""

    num_credits = 1
    is_accepting = True
    is_draining = False
    rung_state = RungState(Rung.SERVING)
    num_gateways = 1

    def __init__(self, number: int) -> None:
        self.card = _card(f"engine-{number}")
        self.load = _load(number)

    def set_demand(self, num_waiting: tuple[int, int, int]) -> None:
        pass

    def submit(self, request: EngineRequest, sink: DeltaSink) -> None:
        pass

    def abort(
        self, request_id: str, num_kept_tokens: int | None = None, index: int | None = None
    ) -> None:
        pass

    def request_snapshot(self) -> None:
        pass

    def set_rung(self, order: RungOrder) -> None:
        pass

    def set_successor(self, *, exists: bool) -> None:
        pass

    async def query(
        self, kind: QueryKind, argument: str, timeout_s: float = QUERY_TIMEOUT_S
    ) -> bytes | None:
        return None

    async def close(self) -> None:
        pass


class LongPromptFleet:
    """``NUM_ENGINES`` engines and a prompt that they hold in part.

    Each holds it up to a place of its own, some of it only in its host's memory or on disk.
    Fragmented, the first one holds all of it, and the others lack single keys of every medium: the
    holders change from each key to the next.
    """

    def __init__(self, *, is_fragmented: bool, seed: int) -> None:
        draw = random.Random(seed)
        self._keys = [draw.randbytes(KEY_BYTES) for _ in range(NUM_PROMPT_KEYS)]
        self._token_ids = [0] * NUM_PROMPT_TOKENS
        self._queue = WaitingQueue()
        self.fleet = Fleet(_INDEX_MAX_BYTES, clock=time.monotonic)
        self._members = [Member(_client(number)) for number in range(NUM_ENGINES)]
        for member in self._members:
            self.fleet.add(member)
            held = self._fragments(draw) if is_fragmented else self._prefixes(draw)
            self._tell(member, held)
        if is_fragmented:
            self._tell(self._members[0], [self._keys] * len(Medium))
        # Others are on their way, as always: every lookup asks for them, too.
        for number, member in enumerate(self._members):
            self.fleet.index.count_send(member.engine_id, "other", self._keys[: 8 * number])

    def arrive(self) -> Job:
        """A request with the prompt, whose keys nobody has hashed yet."""
        block_keys = [_ROOT_KEY] * (NUM_PROMPT_KEYS * KEY_STRIDE)
        block_keys[KEY_STRIDE - 1 :: KEY_STRIDE] = copied(self._keys)
        prompt = Prompt(self._token_ids, _ROOT_KEY, block_keys, _ROOT_KEY)
        sampling = SamplingParams(max_tokens=400)
        return Job("r", prompt, sampling, cast(Answer, None), arrived_s=0.0, deadline_s=60.0)

    def choose(self, job: Job) -> None:
        """As the dispatcher does when a request arrives."""
        assert self.fleet.choose(job, self._queue) is not None

    def send(self, job: Job) -> None:
        """Count it as sent to an engine."""
        self.fleet.count_send(self._members[3], job)

    def settle(self, job: Job) -> None:
        """As if it had never been sent."""
        member = self._members[3]
        self.fleet.index.settle_send(member.engine_id, job.request_id)
        member.unconfirmed.clear()
        member.see_load(time.monotonic())

    def _prefixes(self, draw: random.Random) -> list[list[bytes]]:
        return [self._keys[: draw.randrange(NUM_PROMPT_KEYS + 1)] for _ in Medium]

    def _fragments(self, draw: random.Random) -> list[list[bytes]]:
        return [[key for key in self._keys if draw.random() < 0.9] for _ in Medium]

    def _tell(self, member: Member, held: list[list[bytes]]) -> None:
        for medium, keys in zip(Medium, held, strict=True):
            snapshot = CacheSnapshot(
                0,
                keys,
                is_first=medium is Medium.ACCELERATOR,
                is_last=medium is Medium.DISK,
                medium=medium,
            )
            self.fleet.see_snapshot(member, snapshot)


def _client(number: int) -> EngineClient:
    return SilentEngine(number)


def _card(engine_id: str) -> ModelCard:
    return ModelCard(
        engine_id=engine_id,
        model="m",
        weights_revision="r",
        root_key=_ROOT_KEY,
        block_size_tokens=BLOCK_SIZE_TOKENS,
        max_model_len=_MAX_MODEL_LEN,
        max_request_tokens=_MAX_MODEL_LEN,
        vocab_size=1,
        eos_token_ids=[0],
        tokenizer_json=b"",
        chat_template=None,
        bos_token=None,
        eos_token=None,
        created_s=0,
        max_num_seqs=64,
    )


def _load(number: int) -> LoadView:
    """A little different for each."""
    return LoadView(
        num_running=20 + number % 13,
        pending_prefill_tokens=500 * (number % 7),
        num_free_blocks=40_000,
        num_blocks=187_500,
        prefill_tokens_per_s=6000.0 + 10 * number,
        step_time_s=0.03,
        num_cached_prompt_tokens=10**6,
        num_prompt_tokens=2 * 10**6,
        mean_answer_s=12.0,
    )
