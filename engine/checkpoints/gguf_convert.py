"""Converts a GGUF file of a supported family into a checkpoint folder.

Weights are dequantized to bfloat16, some rows at a time; torch is not needed.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from engine.checkpoints.gguf_config import hugging_face_config
from engine.checkpoints.gguf_file import GgufFile
from engine.checkpoints.gguf_generation import generation_config
from engine.checkpoints.gguf_tensors import Origin, check_tensors, tensor_origins
from engine.checkpoints.gguf_tokenizer import write_tokenizer
from engine.checkpoints.safetensors_file import TensorSpec, write_bfloat16


def convert_gguf(path: Path, folder: Path) -> None:
    """Write the checkpoint's files into ``folder``.

    ``path`` is the file, or any of a model's shards. Raises `CorruptCheckpoint` for a damaged
    file, `UnsupportedCheckpoint` for a model that can't be converted faithfully.
    """
    file = GgufFile.open(path)
    config = hugging_face_config(file)
    origins = tensor_origins(config)
    check_tensors(file, origins)
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", generation_config(file, config))
    write_tokenizer(file, folder, context_len=config["max_position_embeddings"])
    _write_weights(file, folder / "model.safetensors", origins)


def _write_weights(file: GgufFile, path: Path, origins: list[Origin]) -> None:
    by_name = {origin.spec.name: origin for origin in origins}
    num_bytes = sum(file.tensors[origin.gguf_name].num_bytes for origin in origins)
    with tqdm(
        total=num_bytes, desc="Converting", unit="B", unit_scale=True, disable=None
    ) as progress:

        def read_rows(spec: TensorSpec) -> Iterator[NDArray[np.float32]]:
            origin = by_name[spec.name]
            tensor = file.tensors[origin.gguf_name]
            for values in file.read_rows(tensor, multiple_of=origin.rotary_dim or 1):
                yield origin.restore(values)
            progress.update(tensor.num_bytes)

        write_bfloat16(path, [origin.spec for origin in origins], read_rows)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n")
