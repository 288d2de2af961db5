"""A `serve run` file as a search starts from it and writes it: one model's engine settings are
replaced, all else stays. Knows no more of such files than that; `headwater check` knows the rest.
"""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from engine.config import EngineConfig
from simulator.tuning import TuningError

_BUILDER = "deployments.build:build_model"


@dataclass(frozen=True, slots=True)
class ServeYaml:
    """A file and one of its models."""

    path: Path
    document: dict[str, Any]
    position: int
    """Of the model's application."""

    @property
    def model(self) -> str:
        return str(self._args(self.document)["name"])

    @property
    def engine(self) -> EngineConfig:
        """Raises `TuningError`."""
        try:
            return EngineConfig.model_validate(self._args(self.document).get("engine") or {})
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise TuningError(f"{self.path}: engine.{where}: {first['msg']}") from error

    def with_engine(self, changes: Mapping[str, Any], *, remark: str) -> str:
        """The whole file as text; ``remark`` stands at its top."""
        document = deepcopy(self.document)
        args = self._args(document)
        engine = dict(args.get("engine") or {})
        fields = EngineConfig.model_fields
        # What is so by default needs no line, unless one says otherwise.
        engine |= {k: v for k, v in changes.items() if k in engine or v != fields[k].default}
        args["engine"] = engine
        num_ranks = int(changes.get("tensor_parallel_size", 1))
        if "num_gpus" in args and args["num_gpus"] != num_ranks:
            del args["num_gpus"]  # one per rank, then
        header = "".join(f"# {line}\n" for line in remark.splitlines())
        return header + "\n" + yaml.safe_dump(document, sort_keys=False, allow_unicode=True)

    def _args(self, document: dict[str, Any]) -> dict[str, Any]:
        args: dict[str, Any] = document["applications"][self.position]["args"]
        return args


def read_serve_yaml(path: Path, model: str | None) -> ServeYaml:
    """The model called so, or the only one. Raises `TuningError`."""
    try:
        document = yaml.safe_load(path.read_text("utf-8"))
    except OSError as error:
        raise TuningError(f"{path} cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise TuningError(f"{path} is no YAML: `headwater check {path}` says where") from error
    applications = document.get("applications") if isinstance(document, dict) else None
    names = {
        application["args"]["name"]: position
        for position, application in enumerate(
            applications if isinstance(applications, list) else []
        )
        if _is_model(application)
    }
    chosen = model or (next(iter(names)) if len(names) == 1 else None)
    if chosen not in names:
        if not names:
            raise TuningError(f"{path} has no application of {_BUILDER}, and so no model to tune")
        what = f"no model {chosen!r}" if chosen else f"{len(names)} models"
        raise TuningError(f"{path} has {what}: name one of {', '.join(names)} with --model")
    return ServeYaml(path, document, names[chosen])


def _is_model(application: object) -> bool:
    if not isinstance(application, dict) or application.get("import_path") != _BUILDER:
        return False
    args = application.get("args")
    return isinstance(args, dict) and isinstance(args.get("name"), str)
