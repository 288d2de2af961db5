"""What generation_config.json of a GGUF model says: which tokens end an answer, and how to sample
where the caller does not say.
"""

from typing import Any

import numpy as np

from engine.checkpoints.gguf_file import GgufFile
from engine.checkpoints.gguf_metadata import senseless, strings, text, token_id

_ENDING_KINDS = ("eos", "eot", "eom")
_TURN_ENDINGS = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end_of_turn|>", "<|end|>")
"""Files made before tokenizer.ggml.eot_token_id do not say which token ends a turn; llama.cpp
then goes by these names."""
_SAMPLING = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
}


def generation_config(file: GgufFile, config: dict[str, Any]) -> dict[str, Any]:
    """The file's content; ``config`` is the model's config.json."""
    generation = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    ends = [token_id(file, kind) for kind in _ENDING_KINDS] + _turn_endings(file)
    ids = list(dict.fromkeys(end for end in ends if end is not None))
    if len(ids) > 1:
        generation["eos_token_id"] = ids
    return generation | _sampling(file)


def _turn_endings(file: GgufFile) -> list[int]:
    """Tokens of such a name that the chat template writes, unless the file names one itself."""
    template = text(file, "tokenizer.chat_template")
    if template is None or token_id(file, "eot") is not None:
        return []
    tokens = strings(file, "tokenizer.ggml.tokens")
    return [tokens.index(end) for end in _TURN_ENDINGS if end in template and end in tokens]


def _sampling(file: GgufFile) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, name in _SAMPLING.items():
        value = file.metadata.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 2**31:
            raise senseless(file, key, value)
        found[name] = float(str(np.float32(value))) if isinstance(value, float) else value
    if "temperature" in found:
        found["do_sample"] = found["temperature"] > 0
    return found
