"""What one replica serves within its targets, by arithmetic of steps. Pure.

Prefill and decode share steps. A step takes ``base``, ``token`` for each prompt token in it and
``decode`` for each sequence that decodes in it. At ``rate`` requests/s per replica, each with
``uncached`` prompt tokens to compute and ``answer`` tokens to generate:

    running  = rate × answer × step                        (Little's law: a step per token)
    step     = base + running × decode + rate × step × uncached × token
    => step  = base / (1 - rate × (answer × decode + uncached × token))

The largest rate is the one at which, with 99 of 100 requests,
- a token takes no longer than the TPOT target. How many sequences run strays further than Poisson:
  the more run, the slower each goes, and whoever joins held up the others with its prompt. The
  router evens this out over all replicas together. Nor does a replica compute as many prompt tokens
  during each answer: those that come within one are few, and their lengths differ;
- they find a slot and KV;
- the wait for the prompts ahead and the own prompt fit into the TTFT target, over log-normal
  lengths. Waits are those of one queue before all replicas (M/G/k; Sakasegawa 1977 for the
  probability to wait, exponential tail), so that few replicas need more headroom than many.

Seconds, tokens and requests per second throughout. Must not know where the figures come from.
"""

import math
from dataclasses import dataclass

_LATE_SHARE = 0.01
_Z = 2.33
"""Standard deviations that 99 of 100 stay below."""
_LEAST_SLACK = 0.25
"""Of the TTFT target that waiting may take, however long the own prompt takes: more replicas make
no prompt shorter."""
_MOST_STRETCH = 2.0
"""Times the shortest step that a TPOT target allows, even if it asks for less: likewise."""
_NUM_HALVINGS = 24
_Z95 = 1.645
_LENGTHS = ((0.5, -0.67), (0.25, 0.32), (0.15, 0.93), (0.06, 1.48), (0.03, 1.96), (0.01, 2.58))
"""Of requests so many have prompts so long: shares, and standard deviations of the logarithm."""


@dataclass(frozen=True, slots=True)
class StepCosts:
    """How long steps of a replica take, and what fits into them."""

    base_s: float
    prefill_token_s: float
    attended_s: float
    """Of each prompt token and each position that it attends to."""
    decode_s: float
    """Of each sequence that decodes, with a context as long as they have now."""
    step_tokens: float
    """Most prompt tokens in one step."""
    most_running: float
    """Sequences, by slots and by KV."""


@dataclass(frozen=True, slots=True)
class RequestMix:
    """What the mean request is like."""

    prompt_len: float
    uncached_len: float
    answer_len: float
    prompt_tail: float = 2.0
    """The p95 of prompt lengths over their mean."""

    @property
    def depth(self) -> float:
        """Positions that an uncached prompt token attends to."""
        return max(0.0, self.prompt_len - self.uncached_len / 2)

    @property
    def sigma(self) -> float:
        """Standard deviation of the logarithm of uncached lengths: log-normal, and as far apart as
        prompts are in tokens, since what is cached makes them shorter but no more alike."""
        longer = (self.prompt_tail - 1) * self.prompt_len / max(1.0, self.uncached_len)
        inside = _Z95 * _Z95 - 2 * math.log1p(max(0.0, longer))
        return min(1.5, _Z95 - math.sqrt(inside) if inside > 0 else _Z95)

    @property
    def variability(self) -> float:
        """Squared coefficient of variation of uncached lengths."""
        return math.expm1(self.sigma**2)


@dataclass(frozen=True, slots=True)
class Targets:
    """For 99 of 100 requests."""

    ttft_s: float
    tpot_s: float


def max_rate(costs: StepCosts, mix: RequestMix, targets: Targets, num_replicas: int) -> float:
    """Requests/s that each of ``num_replicas`` serves within ``targets``."""
    work_s = _prefill_s(costs, mix) + mix.answer_len * costs.decode_s
    slots = costs.most_running / max(1e-9, mix.answer_len * costs.base_s)
    low, high = 0.0, min(slots, 1 / work_s if work_s > 0 else slots)
    for _ in range(_NUM_HALVINGS):
        rate = (low + high) / 2
        if _is_within(rate, costs, mix, targets, num_replicas):
            low = rate
        else:
            high = rate
    return low


def ttft_alone_s(costs: StepCosts, mix: RequestMix) -> float:
    """Of a prompt of mean length on an idle replica."""
    num_steps = max(1, math.ceil(mix.uncached_len / costs.step_tokens))
    return num_steps * costs.base_s + _prefill_s(costs, mix)


def _token_s(costs: StepCosts, mix: RequestMix) -> float:
    return costs.prefill_token_s + costs.attended_s * mix.depth


def _prefill_s(costs: StepCosts, mix: RequestMix) -> float:
    return mix.uncached_len * _token_s(costs, mix)


def _is_within(
    rate: float, costs: StepCosts, mix: RequestMix, targets: Targets, num_replicas: int
) -> bool:
    prefill_s = _prefill_s(costs, mix)
    busy = rate * (prefill_s + mix.answer_len * costs.decode_s)
    if busy >= 1:
        return False
    step_s = costs.base_s / (1 - busy)
    running = rate * mix.answer_len * step_s
    most = running + _Z * math.sqrt(_running_variance(rate, running, costs, mix) / num_replicas)
    tpot_s = max(targets.tpot_s, _MOST_STRETCH * (costs.base_s + costs.decode_s))
    if most > max(costs.most_running, 1.0 + _Z):
        return False
    # Within less time than a first token may take, a pace can't be told from a pause.
    answer_s = max(mix.answer_len * step_s, targets.ttft_s)
    uneven = 1 / num_replicas + mix.variability
    spread = prefill_s * math.sqrt(rate * uneven / answer_s)
    decoding = 1 - rate * prefill_s - _Z * spread
    if costs.base_s + most * costs.decode_s > tpot_s * decoding:
        return False
    return _is_ttft_within(
        rate, step_s, running, costs, mix, Targets(targets.ttft_s, tpot_s), num_replicas
    )


def _running_variance(rate: float, running: float, costs: StepCosts, mix: RequestMix) -> float:
    """Of the number that run on one replica, to first order: what an arrival and an end change,
    over how fast that is made up for."""
    prefill = rate * _prefill_s(costs, mix)
    missed = prefill / (1 - prefill)
    """Ends that the mean prompt puts off."""
    arrival = 1 + 2 * missed + missed * missed * (1 + mix.variability)
    return running * (1 + running * costs.decode_s / costs.base_s) * (arrival + 1) / 2


def _is_ttft_within(
    rate: float,
    step_s: float,
    running: float,
    costs: StepCosts,
    mix: RequestMix,
    targets: Targets,
    num_replicas: int,
) -> bool:
    token_s = _token_s(costs, mix)
    # Of a step that decodes as many as there often are: what they take, prompts lack.
    often = running + math.sqrt(running / num_replicas)
    decodes_s = costs.base_s + often * costs.decode_s
    room = (targets.tpot_s - decodes_s) / token_s if token_s > 0 else costs.step_tokens
    chunk = min(costs.step_tokens, max(1.0, room))
    service_s = mix.uncached_len / chunk * (decodes_s + chunk * token_s)
    busy = rate * service_s
    if busy >= 1:
        return False
    waiting = busy ** (math.sqrt(2 * (num_replicas + 1)) - 1)
    if waiting <= _LATE_SHARE:
        return True
    sigma = mix.sigma
    mean_s = (1 + mix.variability) / 2 * service_s / (num_replicas * (1 - busy))
    late = 0.0
    for share, deviations in _LENGTHS:
        own_s = step_s + service_s * math.exp(sigma * (deviations - sigma / 2))
        slack_s = max(targets.ttft_s - own_s, _LEAST_SLACK * targets.ttft_s)
        late += share * waiting * math.exp(-slack_s / mean_s) if mean_s > 0 else 0.0
    return late <= _LATE_SHARE
