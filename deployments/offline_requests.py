"""Requests for an engine that is driven in this process: made up, greedy, of a length known before.

Must not know engines, or what is measured.
"""

from cache_tiers.keys import KeySalt, block_keys, root_key
from engine.messages import EngineRequest, SamplingParams

_TIMEOUT_S = 1e6


class OfflineRequests:
    """Of engines with one block size."""

    def __init__(self, block_size_tokens: int) -> None:
        self._block_size_tokens = block_size_tokens
        self._root = root_key(KeySalt("offline", "", block_size_tokens, ""))

    def make(self, request_id: str, token_ids: list[int], max_tokens: int) -> EngineRequest:
        """Answered with exactly ``max_tokens`` tokens: nothing ends it before."""
        keys: list[bytes] = list(block_keys(self._root, token_ids, self._block_size_tokens))
        sampling = SamplingParams(max_tokens, temperature=0.0)
        return EngineRequest(request_id, token_ids, self._root, keys, sampling, _TIMEOUT_S)
