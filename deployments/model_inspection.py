"""Finds out what a model is by its small files alone: for `headwater models inspect`.

Takes a name in the store, a config.json, a folder or any source. Reads no weights, and downloads
nothing but those files.
"""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deployments.device_plan import PlanOptions, plan_devices
from deployments.model_report import ModelReport, fits_of, said_defaults
from engine.checkpoints.chat_template_file import find_chat_template
from engine.checkpoints.errors import CheckpointError, SourceUnavailable
from engine.checkpoints.generation_config import read_eos_token_ids, read_sampling_defaults
from engine.checkpoints.inventory import list_models
from engine.checkpoints.json_file import read_json_object, read_optional_json_object
from engine.checkpoints.pull import create_source
from engine.checkpoints.source import DescribedSource
from engine.checkpoints.store import Checkpoint, checkpoint_path, open_checkpoint
from engine.config import EngineConfig
from engine.messages import SamplingDefaults
from engine.model_size import model_size
from engine.models.registry import read_model_config

DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
_USUAL_CONTEXTS = (2_048, 8_192, 32_768)


@dataclass(frozen=True, slots=True)
class _Description:
    """What the small files say."""

    source: str | None
    config: Mapping[str, Any]
    eos_token_ids: tuple[int, ...]
    sampling_defaults: SamplingDefaults
    has_chat_template: bool | None
    checkpoint: Checkpoint | None = None


def inspect_model(
    target: str,
    *,
    home: Path,
    dtype: str,
    contexts: Sequence[int],
    memory_bytes: int | None,
    plan: PlanOptions | None = None,
) -> ModelReport:
    """Describe ``target``; the usual contexts if none is given. ``plan`` asks for its devices.

    Raises `CheckpointError`, or `EngineConfigError` for a plan that can't be.
    """
    found = _describe(target, home)
    try:
        config = read_model_config(found.config)
    except CheckpointError as error:
        raise type(error)(f"{target}: {error}") from error
    size = model_size(config, dtype_bytes=DTYPE_BYTES[dtype])
    if not contexts:
        contexts = [n for n in _USUAL_CONTEXTS if n < config.max_context_len]
        contexts.append(config.max_context_len)
    windows = {layer.window for layer in config.layers if layer.window is not None}
    checkpoint = found.checkpoint
    return ModelReport(
        model=target,
        source=found.source,
        revision=None if checkpoint is None else checkpoint.revision,
        architecture=config.architecture,
        num_layers=config.num_layers,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        vocab_size=config.vocab_size,
        max_context_tokens=config.max_context_len,
        sliding_window_tokens=max(windows, default=None),
        dtype=dtype,
        num_parameters=size.num_parameters,
        weight_bytes=size.weight_bytes,
        stored_weight_bytes=None if checkpoint is None else _stored_bytes(checkpoint),
        kv_token_bytes=size.kv_token_bytes,
        memory_bytes=memory_bytes,
        fits=fits_of(
            size, contexts, memory_bytes, block_size_tokens=EngineConfig().block_size_tokens
        ),
        plan=None if plan is None else plan_devices(config, contexts, plan, dtype=dtype),
        eos_token_ids=list(found.eos_token_ids),
        has_chat_template=found.has_chat_template,
        sampling_defaults=said_defaults(found.sampling_defaults),
    )


def _describe(target: str, home: Path) -> _Description:
    if "/" not in target and checkpoint_path(home, target).is_dir():
        return _of_checkpoint(open_checkpoint(checkpoint_path(home, target)))
    path = Path(target).expanduser()
    if path.is_file() and path.name.endswith(".json"):
        return _of_files(path, source=str(path.resolve()), is_alone=True)
    if (path / "config.json").is_file():
        return _of_files(path / "config.json", source=str(path.resolve()))
    try:
        source = create_source(target)
    except SourceUnavailable as error:
        names = ", ".join(model.name for model in list_models(home)) or "none"
        raise SourceUnavailable(f"{error} Models on this machine: {names}.") from error
    if not isinstance(source, DescribedSource):
        raise SourceUnavailable(f"{target} says what it holds only when it is pulled: pull it.")
    with tempfile.TemporaryDirectory() as scratch:
        files = source.fetch_description(Path(scratch))
        if "config.json" not in files:
            raise SourceUnavailable(f"{target} has no config.json to look at: pull the model.")
        return _of_files(files["config.json"], source=source.uri)


def _of_checkpoint(checkpoint: Checkpoint) -> _Description:
    return _Description(
        source=checkpoint.manifest.source,
        config=checkpoint.config,
        eos_token_ids=checkpoint.eos_token_ids,
        sampling_defaults=checkpoint.sampling_defaults,
        has_chat_template=checkpoint.chat_template is not None,
        checkpoint=checkpoint,
    )


def _of_files(config_path: Path, *, source: str, is_alone: bool = False) -> _Description:
    """``is_alone``: what lies beside the file doesn't belong to it."""
    folder = config_path.parent
    config = read_json_object(config_path)
    generation = {} if is_alone else read_optional_json_object(folder / "generation_config.json")
    return _Description(
        source=source,
        config=config,
        eos_token_ids=read_eos_token_ids(generation, config, where=source),
        sampling_defaults=read_sampling_defaults(generation, where=source),
        has_chat_template=None if is_alone else find_chat_template(folder) is not None,
    )


def _stored_bytes(checkpoint: Checkpoint) -> int:
    files = checkpoint.manifest.files
    return sum(files[path.name].bytes for path in checkpoint.weights_paths)
