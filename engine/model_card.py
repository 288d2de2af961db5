"""Makes the model card: what gateways must know of the model behind this engine."""

from typing import NamedTuple

from cache_tiers.keys import BlockKey, KeySalt, root_key
from cache_tiers.messages import PeerAddress
from engine.checkpoints.store import Checkpoint
from engine.config import EngineConfig, EngineSpec
from engine.kv_geometry import KV_LAYOUT
from engine.messages import ModelCard
from engine.rank_messages import Ready


def model_root_key(config: EngineConfig, checkpoint: Checkpoint) -> BlockKey:
    """The parent of first blocks, apart from tenants and adapters."""
    config_sha256 = checkpoint.manifest.files["config.json"].sha256
    return root_key(
        KeySalt(
            # Other rotary scalings or windows make other KV of the same weights.
            weights_revision=f"{checkpoint.revision} {config_sha256}",
            kv_dtype=config.dtype,
            block_size_tokens=config.block_size_tokens,
            layout=KV_LAYOUT,
        )
    )


class Node(NamedTuple):
    """Where a replica runs, as gateways are told."""

    node_id: str = ""
    cache_address: PeerAddress | None = None
    """Of its cache, for other nodes'."""


NOWHERE = Node()


def make_model_card(
    spec: EngineSpec,
    checkpoint: Checkpoint,
    ready: Ready,
    *,
    engine_id: str,
    node: Node = NOWHERE,
    start_s: float = 0.0,
) -> ModelCard:
    """Reads the tokenizer; what depends on the loaded model comes from ``ready``.
    ``start_s``: since the replica was asked for; 0: not measured.
    """
    return ModelCard(
        engine_id=engine_id,
        model=spec.model,
        weights_revision=ready.weights_revision,
        root_key=model_root_key(spec.config, checkpoint),
        block_size_tokens=spec.config.block_size_tokens,
        max_model_len=ready.max_model_len,
        max_request_tokens=ready.max_request_tokens,
        vocab_size=ready.vocab_size,
        # One that the model cannot sample would be refused as a request's stop token.
        eos_token_ids=[t for t in checkpoint.eos_token_ids if 0 <= t < ready.vocab_size],
        tokenizer_json=checkpoint.tokenizer_path.read_bytes(),
        chat_template=checkpoint.chat_template,
        bos_token=checkpoint.special_tokens.get("bos_token"),
        eos_token=checkpoint.special_tokens.get("eos_token"),
        created_s=int(checkpoint.weights_paths[0].stat().st_mtime),
        sampling_defaults=checkpoint.sampling_defaults,
        max_num_seqs=spec.config.max_num_seqs,
        node_id=node.node_id,
        node_cache=node.cache_address,
        started_from=spec.started_from,
        start_s=start_s,
    )
