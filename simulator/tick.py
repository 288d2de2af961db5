"""A teaching model: an engine whose time is ticks of 20 ms and whose work is 512 units in each. No
measurement of any real machine.

    prefill   1 unit per prompt token
    decode    160 units once a tick if anything decodes, and 6 per sequence: at most 58
    KV        8,192 tokens per GiB

Decodes go first, oldest first; prompts get the units that are left, oldest first. A request is
admitted when the KV that is written and the KV that prompts admitted before it still have to write
leave room for its own. Answers grow beyond that: when they don't fit, the one admitted last gives
up its KV, goes back to the head of the queue, and is computed again. Deterministic and small enough
to follow by hand; the engine's own scheduler is simulated elsewhere.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

TICK_S = 0.02
UNITS_PER_TICK = 512
_UNITS_PER_DECODING_TICK = 160
_UNITS_PER_DECODE = 6
MAX_DECODES = (UNITS_PER_TICK - _UNITS_PER_DECODING_TICK) // _UNITS_PER_DECODE
KV_TOKENS_PER_GIB = 8192


def prefill_tokens_beside(num_decodes: int) -> int:
    """Of one tick."""
    if not 0 <= num_decodes <= MAX_DECODES:
        raise ValueError(f"{num_decodes} decodes: a tick holds 0 to {MAX_DECODES}")
    if num_decodes == 0:
        return UNITS_PER_TICK
    return UNITS_PER_TICK - _UNITS_PER_DECODING_TICK - _UNITS_PER_DECODE * num_decodes


@dataclass(frozen=True, slots=True)
class TickRequest:
    """What comes in."""

    name: str
    prompt_tokens: int
    answer_tokens: int
    arrival_tick: int = 0


@dataclass(frozen=True, slots=True)
class TickAnswer:
    """How it went; ticks are counted from 0, and tokens leave at the end of one."""

    name: str
    first_token_tick: int
    last_token_tick: int
    num_evictions: int
    """How often it gave up its KV."""


@dataclass(slots=True, eq=False)
class _Sequence:
    request: TickRequest
    num_written: int = 0
    """Tokens whose KV is there."""
    num_answered: int = 0
    num_evictions: int = 0
    first_token_tick: int = 0

    @property
    def num_to_prefill(self) -> int:
        """Tokens that must be written before it decodes: the newest is written by its decode."""
        return self.request.prompt_tokens + max(0, self.num_answered - 1)

    @property
    def is_decoding(self) -> bool:
        return self.num_answered > 0 and self.num_written >= self.num_to_prefill

    @property
    def num_committed(self) -> int:
        """Tokens that it was admitted for and has not written."""
        return max(0, self.num_to_prefill - self.num_written)


class TickEngine:
    """Owner of one engine's requests and KV."""

    def __init__(self, memory_gib: float) -> None:
        self.capacity_tokens = int(memory_gib * KV_TOKENS_PER_GIB)
        self._waiting: deque[_Sequence] = deque()
        self._running: list[_Sequence] = []
        """In the order of admission."""

    @property
    def num_written(self) -> int:
        return sum(sequence.num_written for sequence in self._running)

    @property
    def num_committed(self) -> int:
        return sum(sequence.num_committed for sequence in self._running)

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._running)

    @property
    def running(self) -> list[str]:
        """Names, in the order of admission."""
        return [sequence.request.name for sequence in self._running]

    def add(self, request: TickRequest) -> None:
        """Raises ``ValueError`` for one that no empty engine could finish."""
        longest = request.prompt_tokens + request.answer_tokens - 1
        if min(request.prompt_tokens, request.answer_tokens) < 1:
            raise ValueError(f"request {request.name!r} needs a prompt and an answer")
        if longest > self.capacity_tokens:
            raise ValueError(
                f"request {request.name!r} grows to {longest} tokens of KV, and the memory holds "
                f"{self.capacity_tokens}"
            )
        self._waiting.append(_Sequence(request))

    def tick(self, now: int) -> list[TickAnswer]:
        """Run tick ``now``; returns the answers that ended in it."""
        self._admit()
        decoding = self._make_room()
        self._prefill(prefill_tokens_beside(len(decoding)), now)
        for sequence in decoding:
            sequence.num_written += 1
            sequence.num_answered += 1
        return self._finish(now)

    def _admit(self) -> None:
        while self._waiting:
            wanted = self._waiting[0].num_to_prefill
            if self.num_written + self.num_committed + wanted > self.capacity_tokens:
                return
            self._running.append(self._waiting.popleft())

    def _make_room(self) -> list[_Sequence]:
        """Those that decode in this tick, each with room for a token beside what is committed."""
        while True:
            decoding = [sequence for sequence in self._running if sequence.is_decoding]
            del decoding[MAX_DECODES:]
            needed = self.num_written + self.num_committed + len(decoding)
            if needed <= self.capacity_tokens:
                return decoding
            victim = self._running.pop()
            victim.num_written = 0
            victim.num_evictions += 1
            self._waiting.appendleft(victim)

    def _prefill(self, num_units: int, now: int) -> None:
        for sequence in self._running:
            num_tokens = min(num_units, sequence.num_committed)
            sequence.num_written += num_tokens
            num_units -= num_tokens
            if num_tokens and sequence.num_committed == 0 and sequence.num_answered == 0:
                sequence.num_answered = 1
                sequence.first_token_tick = now

    def _finish(self, now: int) -> list[TickAnswer]:
        ended = [s for s in self._running if s.num_answered >= s.request.answer_tokens]
        self._running = [s for s in self._running if s not in ended]
        return [TickAnswer(s.request.name, s.first_token_tick, now, s.num_evictions) for s in ended]


def run_ticks(requests: Iterable[TickRequest], *, memory_gib: float) -> list[TickAnswer]:
    """From tick 0 until all are answered, in the order of their last tokens."""
    engine = TickEngine(memory_gib)
    coming = deque(sorted(requests, key=lambda request: request.arrival_tick))
    answers: list[TickAnswer] = []
    now = 0
    while coming or engine.has_work:
        while coming and coming[0].arrival_tick <= now:
            engine.add(coming.popleft())
        answers += engine.tick(now)
        now += 1
    return answers
