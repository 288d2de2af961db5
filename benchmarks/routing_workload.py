"""Traffic for routing benchmarks that anybody can make: conversations over a shared system prompt.

Conversations begin at random; each turn sends what was said before again. Lengths are log-normal.
Times are those of the clients: they don't wait for slow answers. Must not know fleets or policies.
"""

import random
from dataclasses import dataclass

from cache_tiers.keys import KEY_BYTES
from simulator.workload import SimulatedRequest, Workload, hit_ceiling


@dataclass(frozen=True, slots=True)
class Conversations:
    """The shape of all conversations."""

    block_size_tokens: int = 512
    system_tokens: int = 600
    """That all prompts begin with."""
    first_tokens: int = 5000
    """Median of what the first message brings."""
    turn_tokens: int = 1200
    """Median of what each later one adds, with the answer before it."""
    length_sigma: float = 1.0
    answer_tokens: int = 350
    """In the mean."""
    mean_turns: float = 4.0
    mean_think_s: float = 60.0

    def workload(self, name: str, num_requests: int, requests_per_s: float, seed: int) -> Workload:
        draw = random.Random(seed)
        begin_s, number = 0.0, 0
        requests: list[SimulatedRequest] = []
        # Twice as many, so that later turns of early conversations are all among the first ones.
        while len(requests) < 2 * num_requests:
            begin_s += draw.expovariate(requests_per_s / self.mean_turns)
            number += 1
            requests += self._conversation(draw, number, begin_s)
        requests.sort(key=lambda request: request.arrival_s)
        return Workload(name, self.block_size_tokens, tuple(requests[:num_requests]))

    def busy_workload(
        self,
        name: str,
        num_requests: int,
        prefill_tokens_per_s: float,
        utilisation: float,
        seed: int,
    ) -> Workload:
        """So dense that replicas that compute so much together are busy for that share of the time,
        if they compute only what is nowhere cached.
        """
        if not 0 < utilisation < 1:
            raise ValueError(f"utilisation must lie between 0 and 1, got {utilisation}")
        rate = utilisation * prefill_tokens_per_s / self.first_tokens
        draft = self.workload(name, num_requests, rate, seed)
        num_tokens = sum(request.num_prompt_tokens for request in draft.requests)
        computed_s = num_tokens * (1 - hit_ceiling(draft)) / prefill_tokens_per_s
        return draft.accelerated(utilisation * draft.duration_s / computed_s)

    def _conversation(
        self, draw: random.Random, number: int, begin_s: float
    ) -> list[SimulatedRequest]:
        requests = []
        num_tokens = self.system_tokens + self._length(draw, self.first_tokens)
        arrival_s = begin_s
        turn = 0
        while True:
            num_answer = 1 + round(draw.expovariate(1 / self.answer_tokens))
            keys = self._keys(number, num_tokens)
            requests.append(
                SimulatedRequest(f"c{number}-{turn}", arrival_s, num_tokens, num_answer, keys)
            )
            if draw.random() < 1 / self.mean_turns:
                return requests
            turn += 1
            arrival_s += num_answer * 0.025 + draw.expovariate(1 / self.mean_think_s)
            num_tokens += self._length(draw, self.turn_tokens)

    def _length(self, draw: random.Random, median: int) -> int:
        return max(1, min(64 * median, round(median * draw.lognormvariate(0, self.length_sigma))))

    def _keys(self, number: int, num_tokens: int) -> list[bytes]:
        """Blocks that lie wholly in the system prompt are everybody's."""
        shared = self.system_tokens // self.block_size_tokens
        half = KEY_BYTES // 2
        return [
            (0 if block < shared else number).to_bytes(half) + block.to_bytes(half)
            for block in range(num_tokens // self.block_size_tokens)
        ]


CHAT = Conversations()
"""Long prompts of which three fifths are cached at best."""

SHARED_PROMPT = Conversations(
    block_size_tokens=128,
    system_tokens=6000,
    first_tokens=300,
    length_sigma=0.8,
    answer_tokens=300,
    mean_turns=1.0,
)
"""One system prompt of 6,000 tokens before all that anybody asks."""
