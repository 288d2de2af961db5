"""What no router can beat: a cache that holds everything for everybody, and nobody who waits."""

from simulator.outcome import Outcome, RequestOutcome
from simulator.routing_spec import RoutingSpec, prefill_s
from simulator.workload import Workload


def bound(spec: RoutingSpec, workload: Workload) -> Outcome:
    """Requests that follow others come at the time that the trace names."""
    known: set[bytes] = set()
    outcomes = []
    for request in workload.requests:
        num_blocks = 0
        for key in request.block_keys:
            if key not in known:
                break
            num_blocks += 1
        known.update(request.block_keys[num_blocks:])
        cached = min(num_blocks * workload.block_size_tokens, request.num_prompt_tokens - 1)
        first_token_s = request.arrival_s + prefill_s(spec.rates, request, cached)
        outcomes.append(
            RequestOutcome(
                request.request_id,
                "",
                request.arrival_s,
                first_token_s,
                first_token_s + request.num_answer_tokens * spec.answer_token_s,
                request.num_prompt_tokens,
                request.num_answer_tokens,
                cached,
            )
        )
    return Outcome(outcomes)
