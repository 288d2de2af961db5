"""The router's policy for an independent replay of traces: a request and read-only views of workers
go in, the index of one and of whom it pulls from come out. Keeps what a gateway knows of itself.
"""

from collections import Counter, defaultdict
from typing import Any

from app.routing.candidate import Candidate, Gateways, HeldPrefix, ReplicaRates, RouteRequest
from app.routing.policy import choose as choose_candidate
from app.routing.traffic import TrafficMeter
from engine.messages import LoadView

BLOCK_TOKENS = 512
VIEW_AGE_S = 1.0  # of what other gateways sent; a gateway that is alone sees everything at once
_meters: defaultdict[int, TrafficMeter] = defaultdict(TrafficMeter)
_totals: Counter[str] = Counter()


def choose(request: dict[str, Any], workers: list[Any]) -> tuple[int, int]:
    now_s, rank, num_tokens = request["arrival_s"], request["gateway"], request["input_tokens"]
    meter, speed = _meters[rank], request["prefill_tps"]
    matches = [min(num_tokens, BLOCK_TOKENS * w.match(request["blocks"])) for w in workers]
    candidates = [
        Candidate(
            str(index).zfill(4),
            LoadView(
                w.running,
                0,
                int(w.wait_s * speed),
                w.capacity_blocks - w.kv_blocks,
                w.capacity_blocks,
                speed,
                num_prompt_tokens=_totals["prompt"],
                num_cached_prompt_tokens=_totals["cached"],
                num_empty_blocks=max(0, w.capacity_blocks - w.told_size),
            ),
            BLOCK_TOKENS,
            HeldPrefix(held, held, held),
            w.running,
            0,
            0,
            0,
            rates=ReplicaRates(peer_tokens_per_s=request["pull_tps"]),
            age_s=VIEW_AGE_S,
        )
        for index, (w, held) in enumerate(zip(workers, matches, strict=True))
    ]
    gateways = Gateways(rank, len(_meters), meter.requests_per_s(now_s), meter.mean_uncached_tokens)
    route = RouteRequest(num_tokens, rotation=_totals["requests"], gateways=gateways)
    candidate, source = choose_candidate(route, candidates)
    index = candidates.index(candidate)
    lender = index if source.peer_id is None else int(source.peer_id)
    meter.record(now_s, num_tokens - max(matches[index], matches[lender]))
    _totals.update(requests=1, prompt=num_tokens, cached=max(matches[index], matches[lender]))
    return index, lender
