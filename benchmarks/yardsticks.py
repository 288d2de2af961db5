"""The router's and the autoscaler's policies for independent replays of traces."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from app.routing.candidate import Candidate, Gateways, HeldPrefix, ReplicaRates, RouteRequest
from app.routing.policy import choose as choose_candidate
from app.routing.traffic import TrafficMeter
from autoscaler.config import ModelScalingConfig
from autoscaler.forecast.forecaster import DemandForecaster
from autoscaler.ladder import critical_ratio
from autoscaler.sizing import START_PACE, Sizer
from engine.messages import LoadView

SCALE_STEP_S = 10.0  # how often the replay of rates asks
VIEW_AGE_S = 1.0  # of what others sent; a gateway that is alone sees everything at once
_meters, _totals = defaultdict[int, TrafficMeter](TrafficMeter), Counter[str]()


def choose(request: Mapping[str, Any], workers: Sequence[Any]) -> tuple[int, int]:
    """Index of the worker, and of the one that it pulls from: the same if it pulls nothing."""
    candidates = [_candidate(f"{i:04}", request, worker) for i, worker in enumerate(workers)]
    rank, now_s, num_tokens = (request[k] for k in ("gateway", "arrival_s", "input_tokens"))
    sent = _meters[rank]
    traffic = Gateways(rank, len(_meters), sent.requests_per_s(now_s), sent.mean_uncached_tokens)
    route = RouteRequest(num_tokens, rotation=_totals["requests"], gateways=traffic)
    chosen, source = choose_candidate(route, candidates)
    index, lender = int(chosen.engine_id), int(source.peer_id or chosen.engine_id)
    num_cached = max(candidates[index].num_cached_tokens, candidates[lender].num_cached_tokens)
    sent.record(now_s, num_tokens - num_cached)
    _totals.update(requests=1, prompt=num_tokens, cached=num_cached)
    return index, lender


def _candidate(engine_id: str, request: Mapping[str, Any], seen: Any) -> Candidate:
    speed, size = request["prefill_tps"], seen.capacity_blocks
    num_free, num_empty = (max(0, size - num) for num in (seen.kv_blocks, seen.told_size))
    # Nobody loses by a prefill but who waits for it: answers take no part in steps there.
    counts = (0, 0, int(seen.wait_s * speed), num_free, size, speed, 0.0, 0)
    load = LoadView(*counts, _totals["cached"], _totals["prompt"], num_empty_blocks=num_empty)
    held = HeldPrefix(*3 * [min(request["input_tokens"], 512 * seen.match(request["blocks"]))])
    rates = ReplicaRates(peer_tokens_per_s=request["pull_tps"])
    return Candidate(engine_id, load, 512, held, 0, 0, 0, 0, 0, rates, 1, VIEW_AGE_S)


class ScalePolicy:
    """The autoscaler's forecast and sizes, at the default costs."""

    def __init__(self, replica_rps: float, lead_s: float) -> None:
        self._replica_rps, self._lead_s = replica_rps, lead_s
        level = critical_ratio(ModelScalingConfig(name="replay").late_cost, 1.0)
        self._forecaster = DemandForecaster(SCALE_STEP_S, level=level)
        self._sizer = Sizer(self._forecaster, START_PACE)

    def decide(self, now_s: float, arrivals: int, queue: float, ready: int, pending: int) -> int:
        """Replicas to have, ready and pending; ``arrivals`` are those of the last step."""
        load = arrivals / SCALE_STEP_S / self._replica_rps
        self._forecaster.observe(now_s, now_s, load)
        sizing = self._sizer.size(
            now_s,
            lead_s=self._lead_s,
            current=ready + pending,
            ready=ready,
            backlog=queue / self._replica_rps,
        )
        return sizing.num_replicas
