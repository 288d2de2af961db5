"""What `benchmarks.routing_http` measures: fleets, and the chat traffic that they are asked.

Data only. Must not know how a fleet is started.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from benchmarks.chat_workload import ChatWorkload

TIME_SCALE = 6
"""Paced engines take the times of a 70B model on eight H100s (25 ms a step, 10,000 prompt tokens a
second) times this, so that two cores carry the traffic of twelve replicas with time to spare."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One fleet and its traffic."""

    name: str
    engine: Mapping[str, Any]
    num_replicas: int
    num_gateways: int
    workload: ChatWorkload
    rate_per_s: float
    num_requests: int
    """Of each round of each contestant."""
    think_s: float = 0.3
    num_pinned_cores: int = 0
    """Each replica runs on one of so many cores; 0: on any."""


PACED = Scenario(
    name="paced",
    engine={
        "runner": "paced",
        "kv_cache_bytes": 8 * 2**30,  # nominal: 370,000 tokens of the quickstart's model
        "max_num_seqs": 64,
        "max_num_batched_tokens": 1024,
        "ttft_budget_s": 2.0 * TIME_SCALE,
        "paced": {
            "step_base_s": 0.025 * TIME_SCALE,
            "per_decode_s": 0.0001 * TIME_SCALE,
            "per_prefill_token_s": 0.0001 * TIME_SCALE,
        },
    },
    num_replicas=12,
    num_gateways=3,
    # About 3,000 tokens in, of which 870 are the session's own. Answers are short: TTFT is what
    # routing decides, and each token costs a Serve handle half a millisecond of a core.
    workload=ChatWorkload(seed=0, num_turns=12, mean_user_words=150, mean_answer_tokens=8),
    rate_per_s=14.0,
    num_requests=312,
)

SMOLLM2 = Scenario(
    name="smollm2",
    engine={"num_threads": 1, "kv_cache_bytes": 2**29, "max_num_seqs": 16},
    num_replicas=2,
    num_gateways=1,
    workload=ChatWorkload(
        seed=0,
        num_turns=8,
        system_words=400,
        mean_user_words=60,
        mean_answer_tokens=8,
        max_history_words=600,
    ),
    rate_per_s=2.0,
    num_requests=48,
    num_pinned_cores=2,
)

SCENARIOS: Mapping[str, Scenario] = MappingProxyType(
    {scenario.name: scenario for scenario in (PACED, SMOLLM2)}
)
