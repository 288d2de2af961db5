"""A teaching model: one replica as four formulas that fit on a blackboard. No measurement of any
real machine.

An iteration of ``b`` sequences takes 9 + 0.55·b ms, so decoding alone gives at most
b / (9 + 0.55·b ms) tokens/s. Prefill runs at 9,000 tokens/s in the share of the time that decoding
leaves. What is ρ busy makes the next one wait ρ / (1 − ρ) of a service. A token's KV takes 128 KiB
in FP16 and half of that in FP8. For estimates in the head and in lectures; must not know clocks.
"""

import math
from dataclasses import dataclass
from typing import Literal

KvPrecision = Literal["fp16", "fp8"]

MAX_BATCH = 32
PREFILL_TOKENS_PER_S = 9000.0
_BASE_MS = 9.0
_PER_SEQUENCE_MS = 0.55
_KV_TOKEN_BYTES: dict[KvPrecision, int] = {"fp16": 128 * 1024, "fp8": 64 * 1024}


def iteration_ms(batch: int) -> float:
    """Also the time per output token. ``batch``: 1 to 32 sequences, else ``ValueError``."""
    if not 1 <= batch <= MAX_BATCH:
        raise ValueError(f"a batch of {batch}: the teaching model holds for 1 to {MAX_BATCH}")
    return _BASE_MS + _PER_SEQUENCE_MS * batch


def decode_ceiling_tokens_per_s(batch: int) -> float:
    """With nothing but decodes."""
    return 1000.0 * batch / iteration_ms(batch)


def prefill_tokens_per_s(decode_share: float) -> float:
    """``decode_share``: of the time that decoding takes, 0 to 1."""
    if not 0 <= decode_share <= 1:
        raise ValueError(f"a share of {decode_share:g} is not between 0 and 1")
    return PREFILL_TOKENS_PER_S * (1 - decode_share)


def wait_in_services(utilization: float) -> float:
    """How many service times a request waits for those before it; infinite from 1 on."""
    if utilization < 0:
        raise ValueError(f"a utilization of {utilization:g} is negative")
    return utilization / (1 - utilization) if utilization < 1 else math.inf


def kv_tokens(memory_bytes: int, precision: KvPrecision) -> int:
    """That fit."""
    return memory_bytes // _KV_TOKEN_BYTES[precision]


@dataclass(frozen=True, slots=True)
class TeachingLoad:
    """What one replica is asked for."""

    requests_per_s: float
    prompt_tokens: int
    answer_tokens: int
    batch: int
    """Sequences that decode side by side."""


@dataclass(frozen=True, slots=True)
class TeachingEstimate:
    """Of a load; times are means, and infinite where the replica can't keep up."""

    decode_share: float
    """Of the decode ceiling; above 1 answers alone are too many."""
    prefill_tokens_per_s: float
    utilization: float
    """Of the time left for prefill."""
    ttft_s: float
    tpot_s: float
    kv_tokens: int
    """When every sequence of the batch is as long as it gets."""


def estimate(load: TeachingLoad) -> TeachingEstimate:
    """Follow the formulas from the load to what its users see."""
    tpot_s = iteration_ms(load.batch) / 1000
    answered = load.requests_per_s * load.answer_tokens
    decode_share = answered / decode_ceiling_tokens_per_s(load.batch)
    rate = prefill_tokens_per_s(min(1.0, decode_share))
    utilization = load.requests_per_s * load.prompt_tokens / rate if rate else math.inf
    service_s = load.prompt_tokens / rate if rate else math.inf
    # The first token leaves at the end of an iteration.
    ttft_s = service_s * (1 + wait_in_services(utilization)) + tpot_s
    return TeachingEstimate(
        decode_share=decode_share,
        prefill_tokens_per_s=rate,
        utilization=utilization,
        ttft_s=ttft_s,
        tpot_s=tpot_s if decode_share < 1 else math.inf,
        kv_tokens=load.batch * (load.prompt_tokens + load.answer_tokens),
    )
