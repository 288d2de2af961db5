"""Shape and size of the paged KV, as planning and memory budgets need it. Imports no torch."""

from dataclasses import dataclass

KV_LAYOUT = "layer-block-token-kv-head"
"""Order of the pool's dimensions, for ``cache_tiers.keys.KeySalt``: KV in another order is other
KV."""


@dataclass(frozen=True, slots=True)
class KvGeometry:
    """How the KV of one model is cut into blocks."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    block_size_tokens: int
    bytes_per_element: int

    @property
    def row_bytes(self) -> int:
        """Key and value of one token in one layer."""
        return 2 * self.num_kv_heads * self.head_dim * self.bytes_per_element

    @property
    def block_bytes(self) -> int:
        """Keys and values of one block, all layers together."""
        return self.row_bytes * self.block_size_tokens * self.num_layers
