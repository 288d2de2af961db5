"""Which model is to be warmed: of a `serve run` file, or of those that a cluster serves.

Must not know nodes.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from pydantic import ValidationError
from ray.serve._private.constants import SERVE_CONTROLLER_NAME, SERVE_NAMESPACE

from cache_tiers.rung import Rung
from deployments.config import ModelArgs
from deployments.faults import from_validation
from deployments.serve_file import read_serve_file


class WarmError(Exception):
    """What stands in the way, in lines that say what to do."""


class Application(Protocol):
    """What is needed of Serve's `ServeApplicationSchema`."""

    @property
    def args(self) -> Any: ...


def models_of_file(path: Path, rung: Rung) -> list[ModelArgs]:
    """Those of its models whose nodes hold weights. Raises `WarmError`."""
    file = read_serve_file(path)
    if file.faults:
        raise WarmError("\n".join(file.describe(fault) for fault in file.faults))
    models = [model.args for model in file.models]
    held = [args for args in models if _reason_against(args, rung) is None]
    if not held:
        reasons = [f"{path}: {args.name}: {_reason_against(args, rung)}" for args in models]
        raise WarmError("\n".join(reasons) or f"{path} has no models")
    return held


def deployed_model(name: str, rung: Rung) -> ModelArgs:
    """As the cluster serves it; a connection to it is there. Raises `WarmError`."""
    import ray

    try:
        controller = ray.get_actor(SERVE_CONTROLLER_NAME, namespace=SERVE_NAMESPACE)
    except ValueError:
        raise WarmError(f"this cluster serves nothing: name the file of {name!r}") from None
    return model_of(name, ray.get(controller.get_app_configs.remote()), rung)


def model_of(name: str, applications: Mapping[str, Application], rung: Rung) -> ModelArgs:
    """``applications``: by their names, which are those of models. Raises `WarmError`."""
    if name not in applications:
        known = ", ".join(sorted(applications)) or "nothing"
        raise WarmError(f"no model {name!r} is deployed ({known} is): name its file, FILE.yaml")
    try:
        args = ModelArgs.model_validate(applications[name].args)
    except ValidationError as error:
        fault = from_validation(error, (), ())[0]
        raise WarmError(f"the application {name!r} is no model's: {fault}") from None
    reason = _reason_against(args, rung)
    if reason is not None:
        raise WarmError(f"{name}: {reason}")
    return args


def _reason_against(args: ModelArgs, rung: Rung) -> str | None:
    """Why nodes can't hold its weights on ``rung``."""
    section = args.node_cache
    if section is None or section.weights is None:
        return "its nodes hold no weights: add node_cache.weights to its args"
    if rung is Rung.STAGED and section.weights.host_bytes == 0:
        return "its nodes have no memory for weights: raise node_cache.weights.host_bytes"
    return None
