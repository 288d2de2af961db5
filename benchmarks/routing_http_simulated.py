"""The rounds of `benchmarks.routing_http` once more on a virtual clock: the same sessions, arrivals
and pauses asked of a simulated fleet whose steps take as long as those of the paced engines, or as
a profile says.

Must not know servers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from benchmarks.chat_workload import ChatTurn, ChatWorkload
from benchmarks.load import OpenLoop, poisson_arrivals_s
from benchmarks.routing_http_scenarios import Scenario
from cache_tiers.keys import KeySalt, block_keys, root_key
from engine.config import EngineConfig
from engine.performance_profile import StepCost
from simulator.fleet import FleetSpec, simulate
from simulator.performance import LinearModel
from simulator.replica_spec import ReplicaSpec
from simulator.workload import SimulatedRequest, Workload

KV_TOKEN_BYTES = 23_040
"""Of the quickstart's model in bfloat16."""
STALE_S = 0.05
"""About what a frame of an engine takes to a gateway, on a machine that is in use."""
WARM_UP_GAP_S = 0.5

Encode = Callable[[Sequence[Mapping[str, str]]], list[int]]
"""The token ids of a conversation, as the gateway makes them."""


@dataclass(frozen=True, slots=True)
class SimulatedRound:
    """Means over the requests of a round."""

    ttft_s: float
    tpot_s: float
    hit_rate: float


class RoundSimulator:
    """Of one scenario."""

    def __init__(
        self, scenario: Scenario, encode: Encode, replica: ReplicaSpec | None = None
    ) -> None:
        """``replica``: what engines are; by default they are paced ones."""
        self._scenario = scenario
        self._config = EngineConfig.model_validate(dict(scenario.engine))
        self._replica = replica or _paced(self._config)
        self._encode = encode
        self._root = root_key(
            KeySalt("simulated", self._config.dtype, self._config.block_size_tokens, "")
        )

    def run(
        self, policy: str, load: OpenLoop, run: str, warm_up: tuple[ChatWorkload, int]
    ) -> SimulatedRound:
        """``warm_up``: what was asked before the round, and how many requests of it."""
        spec = FleetSpec(
            self._scenario.num_replicas,
            self._replica,
            policy=policy,
            num_gateways=self._scenario.num_gateways,
            stale_s=STALE_S,
        )
        before = list(self._warm_up(*warm_up))
        begin_s = WARM_UP_GAP_S * len(before) + 60.0  # all answered by then
        requests = [*before, *self._round(load, run, begin_s)]
        requests.sort(key=lambda request: request.arrival_s)
        workload = Workload("round", self._config.block_size_tokens, tuple(requests))
        measured = [
            request
            for request in simulate(workload, spec).requests
            if request.request_id.startswith("round")
        ]
        tpots = [request.tpot_s for request in measured if request.tpot_s is not None]
        num_tokens = sum(request.num_prompt_tokens for request in measured)
        return SimulatedRound(
            fmean(request.ttft_s for request in measured),
            fmean(tpots),
            sum(request.num_cached_tokens for request in measured) / num_tokens,
        )

    def _warm_up(self, chat: ChatWorkload, num_requests: int) -> Iterator[SimulatedRequest]:
        for number in range(num_requests):
            for turn in chat.session("warmup", number):
                yield self._request(f"warmup-{number}", WARM_UP_GAP_S * number, turn)

    def _round(self, load: OpenLoop, run: str, begin_s: float) -> Iterator[SimulatedRequest]:
        """As `benchmarks.load.run_load` sends them."""
        num_sessions = -(-load.num_requests // load.session_len)
        arrivals_s = poisson_arrivals_s(load.rate_per_s / load.session_len, num_sessions, load.seed)
        num_left = load.num_requests
        for session, arrival_s in enumerate(arrivals_s):
            pauses = random.Random(f"{load.seed}/pauses/{session}")
            turns: Sequence[ChatTurn] = list(self._scenario.workload.session(run, session))
            for number, turn in enumerate(turns[:num_left]):
                request = self._request(f"round-{session}-{number}", begin_s + arrival_s, turn)
                think_s = pauses.expovariate(1 / load.think_s) if number else None
                yield replace(request, session=f"s{session}", think_s=think_s)
            num_left -= len(turns[:num_left])

    def _request(self, name: str, arrival_s: float, turn: ChatTurn) -> SimulatedRequest:
        token_ids = self._encode(turn.messages)
        keys = [*block_keys(self._root, token_ids, self._config.block_size_tokens)]
        return SimulatedRequest(name, arrival_s, len(token_ids), turn.answer_tokens, keys)


def _paced(config: EngineConfig) -> ReplicaSpec:
    assert config.runner == "paced", "only their step times are known beforehand"
    paced = config.paced
    cost = StepCost(
        base_s=paced.step_base_s,
        per_prefill_token_s=paced.per_prefill_token_s,
        per_decode_s=paced.per_decode_s,
        per_context_token_s=paced.per_context_token_s,
        per_attended_token_s=paced.per_attended_token_s,
    )
    return ReplicaSpec(LinearModel(cost), config.kv_cache_bytes // KV_TOKEN_BYTES, config=config)
