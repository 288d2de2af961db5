"""What one engine of this machine shall run, from a command's arguments: a model, or a model of a
`serve run` file, with some settings in place of the file's. Loads nothing.

Nobody waits for a stream here: prompts fill their steps, and every prompt is computed.
"""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import ValidationError

    from engine.config import EngineConfig


@dataclass(frozen=True, slots=True)
class BenchTarget:
    name: str
    checkpoint: Path
    config: "EngineConfig"


def add_target_arguments(parser: argparse.ArgumentParser) -> None:
    """Of ``find_target``."""
    parser.add_argument(
        "target", metavar="MODEL|FILE", help="a model on this machine, or a `serve run` .yaml file"
    )
    parser.add_argument("--model", metavar="NAME", help="which one of a file with several")


def add_engine_group(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Settings of the engine that stand in place of the target's."""
    engine = parser.add_argument_group(
        "how the engine runs it",
        "by default as the file says; without a file, or where it says nothing, as "
        "docs/configuration.md has it",
    )
    engine.add_argument("--threads", type=count, metavar="T", help="CPU threads")
    engine.add_argument(
        "--dtype", choices=["bfloat16", "float32"], help="of weights, activations and KV"
    )
    engine.add_argument("--device", choices=["cpu", "cuda"], help="where the model runs")
    return engine


def find_target(args: argparse.Namespace) -> BenchTarget:
    """As the file has it. Raises `EngineConfigError` if there is no such model, or it runs on
    several ranks."""
    from deployments.environment import headwater_home
    from engine.checkpoints.store import checkpoint_path
    from engine.config import EngineConfig
    from engine.errors import EngineConfigError

    name, config = args.target, EngineConfig()
    if name.endswith((".yaml", ".yml")):
        name, config = _find_in_file(Path(name), args.model)
    elif args.model is not None:
        raise EngineConfigError("--model is for a file with several models")
    if config.tensor_parallel_size > 1:
        raise EngineConfigError(
            f"{name} runs on {config.tensor_parallel_size} ranks, and this drives one: measure "
            "the served model with POST /debug/profile"
        )
    return BenchTarget(name, checkpoint_path(headwater_home(), name), config)


def _find_in_file(path: Path, model: str | None) -> "tuple[str, EngineConfig]":
    from deployments.serve_file import read_serve_file
    from engine.errors import EngineConfigError

    file = read_serve_file(path)
    if file.faults:
        raise EngineConfigError("\n".join(file.describe(fault) for fault in file.faults))
    models = {section.args.name: section.args for section in file.models}
    chosen = model or (next(iter(models)) if len(models) == 1 else None)
    if chosen not in models:
        what = f"no model {chosen!r}" if chosen else f"{len(models)} models"
        listed = ", ".join(models) or "none"
        raise EngineConfigError(f"{path} has {what}: name one of {listed} with --model")
    return chosen, models[chosen].engine


def change_config(
    config: "EngineConfig", changes: Mapping[str, Any], options: Mapping[str, str] | None = None
) -> "EngineConfig":
    """What is None stays. ``options``: of the command line, by the settings they become, where the
    names differ. Raises `EngineConfigError` that names them."""
    from pydantic import ValidationError

    from engine.config import EngineConfig
    from engine.errors import EngineConfigError

    changed = {key: value for key, value in changes.items() if value is not None}
    try:
        return EngineConfig.model_validate({**config.model_dump(), **changed})
    except ValidationError as error:
        raise EngineConfigError(_describe(error, options or {})) from error


def _describe(error: "ValidationError", options: Mapping[str, str]) -> str:
    first = error.errors(include_url=False)[0]
    message = first["msg"].removeprefix("Value error, ")
    if not first["loc"]:  # of several settings, which the message names
        causes = [f"{key} comes from {option}" for key, option in options.items() if key in message]
        return "; ".join([message, *causes])
    key = str(first["loc"][0])
    message = message[:1].lower() + message[1:]
    return f"{options.get(key, key)}: {key} would be {first['input']}, and {message}"


def for_throughput(
    config: "EngineConfig", *, num_seqs: int, num_seqs_option: str
) -> "EngineConfig":
    """Every prompt is computed, and fills its steps; at least so many sequences run at once, as
    the option asks."""
    limits = {"max_step_stretch": None, "tpot_target_s": None, "prefix_caching": False}
    free = config.model_copy(update=limits)
    changes = {"max_num_seqs": max(config.max_num_seqs, num_seqs)}
    return change_config(free, changes, {"max_num_seqs": num_seqs_option})


def count(text: str) -> int:
    """An argument's type."""
    if not text.isdecimal() or not 1 <= int(text) <= 2**20:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 to {2**20}")
    return int(text)
