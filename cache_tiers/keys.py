"""Block keys: the chained hash of token blocks.

The single definition for the router, the accelerator's prefix cache and every tier. Equal keys mean
equal tokens since the start of the prompt, under the same weights, adapter, tenant and KV layout,
and so equal KV: a cache addressed by these keys is never stale, only absent. Must not know
requests, tensors or replicas.
"""

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import NewType

BlockKey = NewType("BlockKey", bytes)
"""16 bytes of BLAKE2b; the key of a block includes the key of the block before it."""

KEY_BYTES = 16


@dataclass(frozen=True, slots=True)
class KeySalt:
    """What must be equal for KV to be interchangeable, apart from the tokens themselves."""

    weights_revision: str
    """Hashes of the weights and their configuration, not their name: a re-upload under the same
    name is another model."""
    kv_dtype: str
    block_size_tokens: int
    layout: str
    """Order and split of a block's bytes, such as ``"layer-kv-slot-head"``."""
    lora: str = ""
    """Adapter name and version, or empty."""
    tenant: str = ""
    """Trust group whose requests may share a prefix, or empty for the public one."""


def root_key(salt: KeySalt) -> BlockKey:
    """The parent of every first block under ``salt``."""
    digest = hashlib.blake2b(digest_size=KEY_BYTES, person=b"headwater-root")
    for part in astuple(salt):
        encoded = str(part).encode()
        digest.update(len(encoded).to_bytes(4, "little"))
        digest.update(encoded)
    return BlockKey(digest.digest())


def salted_root(root: BlockKey, salt: str) -> BlockKey:
    """The parent of first blocks that only requests with the same ``salt`` share."""
    return BlockKey(
        hashlib.blake2b(
            salt.encode(), digest_size=KEY_BYTES, key=root, person=b"headwater-salt"
        ).digest()
    )


def next_key(parent: BlockKey, block_tokens: Sequence[int]) -> BlockKey:
    """The key of the full block ``block_tokens`` that follows ``parent``."""
    tokens = array("I", block_tokens).tobytes()
    return BlockKey(hashlib.blake2b(parent + tokens, digest_size=KEY_BYTES).digest())


def block_keys(root: BlockKey, token_ids: Sequence[int], block_size_tokens: int) -> list[BlockKey]:
    """Keys of all full blocks of ``token_ids``; a partial last block has none."""
    keys: list[BlockKey] = []
    parent = root
    num_full = len(token_ids) // block_size_tokens
    for start in range(0, num_full * block_size_tokens, block_size_tokens):
        parent = next_key(parent, token_ids[start : start + block_size_tokens])
        keys.append(parent)
    return keys


def partial_key(parent: BlockKey, tokens: Sequence[int]) -> BlockKey:
    """The key of a block that holds only ``tokens``, fewer than fill it, after ``parent``."""
    return next_key(parent, tokens)
