"""Shape and size of the paged KV, as planning and memory budgets need it. Imports no torch.

A *KV group* is a set of layers whose KV lives equally long: with full attention for ever, behind a
sliding window only as long as the window reaches. Each group has a block table of its own; all
groups take their blocks from one pool, so a block holds the KV of ``block_size_tokens`` tokens in
``layers_per_block`` layers, whichever group it serves.
"""

from collections.abc import Sequence
from dataclasses import dataclass

KV_LAYOUT = "layer-block-token-kv-head"
"""Order of the pool's dimensions, for ``cache_tiers.keys.KeySalt``: KV in another order is other
KV."""


@dataclass(frozen=True, slots=True)
class KvGroup:
    """Layers that share one block table."""

    layers: tuple[int, ...]
    window: int | None = None
    """Tokens that a token attends to, itself included; None: all before it."""


@dataclass(frozen=True, slots=True)
class KvGeometry:
    """How the KV of one model is cut into blocks."""

    groups: tuple[KvGroup, ...]
    num_kv_heads: int
    head_dim: int
    block_size_tokens: int
    bytes_per_element: int

    @property
    def num_layers(self) -> int:
        return sum(len(group.layers) for group in self.groups)

    @property
    def group_of_layer(self) -> tuple[int, ...]:
        """Index of each layer's group."""
        group_of = {
            layer: index for index, group in enumerate(self.groups) for layer in group.layers
        }
        return tuple(group_of[layer] for layer in range(self.num_layers))

    @property
    def layers_per_block(self) -> int:
        return max(len(group.layers) for group in self.groups)

    @property
    def row_bytes(self) -> int:
        """Key and value of one token in one layer."""
        return 2 * self.num_kv_heads * self.head_dim * self.bytes_per_element

    @property
    def block_bytes(self) -> int:
        """Keys and values of one block."""
        return self.row_bytes * self.block_size_tokens * self.layers_per_block

    @property
    def token_bytes(self) -> int:
        """Keys and values of one token in all layers, as long as no window has passed it."""
        return self.row_bytes * self.num_layers

    def num_blocks_of(self, num_tokens: int) -> int:
        """Blocks that one sequence of ``num_tokens`` holds at most while it decodes.

        Its prompt can be computed with as many, in chunks of a block at most.
        """
        num_blocks = 0
        for group in self.groups:
            held = num_tokens
            if group.window is not None:
                # A window may begin amid a block, and the next token may need a new one.
                held = min(num_tokens, group.window - 1 + self.block_size_tokens)
            num_blocks += -(-held // self.block_size_tokens)
        return num_blocks


def group_layers(windows: Sequence[int | None]) -> tuple[KvGroup, ...]:
    """Cut layers into groups of one kind and about equal size; ``windows[i]`` is layer ``i``'s.

    The size is that of the smallest kind, so that padding wastes less than one block per token and
    kind. Full attention comes first.
    """
    kinds: dict[int | None, list[int]] = {}
    for layer, window in enumerate(windows):
        kinds.setdefault(window, []).append(layer)
    size = min(map(len, kinds.values()))
    order = sorted(kinds, key=lambda window: (window is not None, window or 0))
    return tuple(
        KvGroup(tuple(layers[begin : begin + size]), window)
        for window in order
        for layers in [kinds[window]]
        for begin in range(0, len(layers), size)
    )
