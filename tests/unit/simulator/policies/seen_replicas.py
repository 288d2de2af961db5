"""Replicas as a policy sees them, with the one thing set that a test is about."""

from app.routing.candidate import Candidate, HeldPrefix, ReplicaRates
from engine.messages import LoadView
from simulator.policies.base import Seen

BLOCK_SIZE_TOKENS = 100


def seen(
    name: str,
    *,
    running: int = 0,
    waiting: int = 0,
    prefill_tokens: int = 0,
    active_blocks: int = 0,
    held: HeldPrefix | None = None,
    told_tokens: int = 0,
    told_size: int = 0,
    recent_requests: int = 0,
    recent_cost_s: float = 0.0,
    peer_tokens_per_s: float = 0.0,
) -> Seen:
    """1,000 blocks of 100 tokens, 1,000 prefill tokens/s."""
    load = LoadView(
        num_running=running,
        num_waiting=waiting,
        pending_prefill_tokens=prefill_tokens,
        num_free_blocks=1000 - active_blocks,
        num_blocks=1000,
    )
    candidate = Candidate(
        engine_id=name,
        load=load,
        block_size_tokens=BLOCK_SIZE_TOKENS,
        held=held or HeldPrefix(),
        num_in_flight=0,
        num_unseen=0,
        num_unseen_tokens=0,
        max_num_seqs=0,
        rates=ReplicaRates(prefill_token_s=0.001, peer_tokens_per_s=peer_tokens_per_s),
    )
    return Seen(candidate, told_tokens, told_size, recent_requests, recent_cost_s)
