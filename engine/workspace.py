"""How much memory a step takes beside weights and KV pool, at most: known before anything loads.

An upper estimate from the tensors that live at once in the three phases of a step (attention, MLP,
logits). Imports no torch.
"""

from engine.config import MIB, EngineConfig
from engine.models.model_config import ModelConfig

_QUERY_TILE = 64
"""Of `engine.attention.cpu_kernels`."""
_REFERENCE_QUERY_TILE = 128
"""Of `engine.attention.reference`."""
_FLOAT = 4
_SAMPLED_ELEMENTS = 2**22
_SAMPLED_ELEMENT_BYTES = 32
"""The sampler works on so many logits at a time, in float32 and float64."""
_MAX_RESCORED = 2**14
_MAX_RESCORED_PER_ROW = 256
"""Token ids whose logits are computed exactly in one call, where the weights' dtype is coarse."""
_PROMPT_ROWS = 64
"""Of `engine.prompt_logprobs`."""
_PANEL_COLUMNS = 32
"""Of `engine.native.packing`."""
_THREAD_BYTES = 2 * MIB
"""A thread's tile of attention and its sums: half a megabyte with heads of 256 dimensions."""
_ONEDNN_BYTES = 128 * MIB
"""What oneDNN and the layer above it keep for 64 batch sizes each (`engine.layers.linear`)."""


def workspace_bytes(
    config: EngineConfig,
    model: ModelConfig,
    *,
    max_request_tokens: int,
    bytes_per_element: int,
    is_compiled: bool = False,
) -> int:
    """For the largest step, mostly one of ``max_num_batched_tokens``, in which ``max_num_seqs``
    sequences sample, one of them as long as any can get.

    ``model`` has the sizes of one rank. The logits count whole, as rank 0 has them; while it joins
    them from all ranks they are in the weights' dtype alone, which takes less than what follows.
    """
    num_tokens = max_step_tokens(config)
    tables = _table_bytes(config, model, max_request_tokens)
    if is_compiled:
        # Its logits are float32, and stay beside what the sampler makes of them.
        logits = _logits_bytes(config, model, _FLOAT)
        return compiled_bytes(config, model, num_tokens) + logits + tables
    hidden = num_tokens * model.hidden_size
    # Beside the phases: residual stream, rotations, and the indices of the attention back end.
    steady = hidden * _FLOAT + num_tokens * model.head_dim * 2 * (bytes_per_element + _FLOAT)
    phase = max(
        _attention_bytes(config, model, num_tokens, max_request_tokens, bytes_per_element),
        _mlp_bytes(model, num_tokens, bytes_per_element),
        _logits_bytes(config, model, bytes_per_element),
    )
    private = _ONEDNN_BYTES if config.device == "cpu" and config.weight_layout != "mapped" else 0
    return steady + phase + private + tables + _sum_bytes(config, hidden)


def compiled_bytes(config: EngineConfig, model: ModelConfig, num_tokens: int) -> int:
    """What the compiled step reserves for its largest step, at most, but for logits."""
    element = 2
    heads = (2 * model.num_heads + 2 * model.num_kv_heads) * model.head_dim
    # Residual stream, a sum beside it, and the part of a rank; normed, heads, inner; indices.
    per_token = (
        model.hidden_size * (3 * _FLOAT + element)
        + (heads + model.intermediate_size) * element
        + 2 * model.num_layers * model.head_dim * _FLOAT
    )
    widest = max(model.hidden_size, model.intermediate_size, model.num_heads * model.head_dim)
    per_thread = widest * _PANEL_COLUMNS * element + _THREAD_BYTES
    # Embedded rows on their way to the residual stream.
    embedded = num_tokens * model.hidden_size * (element + _FLOAT)
    return num_tokens * per_token + embedded + config.num_threads * per_thread


def max_step_tokens(config: EngineConfig) -> int:
    """New tokens of the largest step."""
    # Beside decodes that use the budget up, whoever is left gets the smallest chunk.
    num_decodes = config.max_num_seqs - 1
    return max(config.max_num_batched_tokens, num_decodes + config.min_prefill_chunk_tokens)


def max_logit_rows(config: EngineConfig) -> int:
    """Rows of logits that exist at once."""
    return max(config.max_num_seqs, _PROMPT_ROWS)


def _sum_bytes(config: EngineConfig, num_hidden: int) -> int:
    """What ranks add up, and what they send small sums with."""
    if config.tensor_parallel_size == 1:
        return 0
    return num_hidden * _FLOAT + config.tensor_parallel_size * MIB


def _attention_bytes(
    config: EngineConfig, model: ModelConfig, num_tokens: int, max_len: int, element: int
) -> int:
    num_heads, num_kv_heads = model.num_heads, model.num_kv_heads
    query = num_tokens * num_heads * model.head_dim
    new_kv = num_tokens * 2 * num_kv_heads * model.head_dim
    normed = num_tokens * model.hidden_size * (_FLOAT + element)
    # Heads, once more while parts are joined, and once more turned; output and scaled queries.
    projected = 3 * (query + new_kv) * element + 2 * query * element
    if model.has_qk_norm:
        projected += 2 * query * _FLOAT
    context = max_len * 2 * num_kv_heads * model.head_dim
    if config.attention == "reference" or config.device != "cpu":
        repeated = context * (num_heads // num_kv_heads) * 2 * _FLOAT
        scores = 3 * num_heads * min(num_tokens, _REFERENCE_QUERY_TILE) * max_len * _FLOAT
        return normed + projected + context * element + repeated + scores
    # Gathered KV, which a matrix product may copy; scores before and after the softmax.
    scores = 2 * num_heads * _QUERY_TILE * max_len * element
    return normed + projected + 2 * context * element + scores


def _mlp_bytes(model: ModelConfig, num_tokens: int, element: int) -> int:
    inner = num_tokens * model.intermediate_size * element
    # Gate and up, once more while they are joined, and the activated gate.
    return 5 * inner + num_tokens * model.hidden_size * (2 * _FLOAT + 2 * element)


def _logits_bytes(config: EngineConfig, model: ModelConfig, element: int) -> int:
    num_rows = max_logit_rows(config)
    num_logits = num_rows * model.vocab_size
    # In the weights' dtype, and in float32 while they are reported.
    logits = num_logits * (element + 2 * _FLOAT)
    sampled = min(num_logits, _SAMPLED_ELEMENTS) * _SAMPLED_ELEMENT_BYTES
    rescored = 0
    if element < _FLOAT:
        num_rescored = min(_MAX_RESCORED, num_rows * _MAX_RESCORED_PER_ROW)
        rescored = num_rescored * model.hidden_size * (element + _FLOAT)
    return num_rows * model.hidden_size * 3 * _FLOAT + logits + max(sampled, rescored)


def _table_bytes(config: EngineConfig, model: ModelConfig, max_len: int) -> int:
    """Block tables: an integer per block, slot and KV group, and a copy for the step."""
    geometry = model.kv_geometry(block_size_tokens=config.block_size_tokens, bytes_per_element=1)
    max_blocks = -(-max_len // config.block_size_tokens)
    return 2 * 8 * len(geometry.groups) * config.max_num_seqs * max_blocks
