"""Writes docs/configuration.md: ``python -m deployments.config_reference``.

A key's text is the docstring under its field, so the reference cannot say something else.
"""

import ast
import inspect
import sys
import textwrap
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from app.config import GatewayConfig, ModelRoute, PoolConfig, PoolsConfig
from autoscaler.config import (
    AutoscalerConfig,
    CapacityConfig,
    ModelScalingConfig,
    ScheduleConfig,
    StepCostConfig,
)
from cache_tiers.config import DiskConfig, NodeCacheConfig, ObjectStoreConfig
from deployments.config import AutoscalingArgs, GatewayArgs, ModelArgs
from engine.config import EngineConfig, PacedConfig

_INTRODUCTION = """\
# Configuration

A deployment is one `serve run` file, such as
[configs/quickstart.yaml](../configs/quickstart.yaml): one application for the gateway and one for
each model. `headwater check FILE` finds unknown keys, wrong values, missing models, busy ports,
missing GPUs and too little memory of the machine, without starting anything. Unknown keys are
errors everywhere. Units stand in the names.

Changing an application's `args` restarts that application and no other; changing a `user_config`,
the gateway's or the autoscaler's, restarts nothing.

This page is written by `make docs` from the docstrings of the configuration classes.
"""

_SECTIONS: list[tuple[str, type[BaseModel]]] = [
    ("Gateway: `args` of `deployments.build:build_gateway`", GatewayArgs),
    ("Gateway at run time: `user_config` of the deployment `Gateway`", GatewayConfig),
    ("Models the gateway offers: `user_config.models[]`", ModelRoute),
    ("Pools of replicas: `user_config.pools`", PoolsConfig),
    ("One pool: `user_config.pools.batch` and `.long_prompts`", PoolConfig),
    ("Model: `args` of `deployments.build:build_model`", ModelArgs),
    ("Autoscaled model: `args.autoscaling`", AutoscalingArgs),
    ("Autoscaler at run time: `user_config` of the deployment `Autoscaler`", AutoscalerConfig),
    ("One model's sizes: `user_config.models[]`", ModelScalingConfig),
    ("One schedule: `user_config.models[].schedules[]`", ScheduleConfig),
    ("What one replica takes: `user_config.models[].capacity`", CapacityConfig),
    ("Step times: `user_config.models[].capacity.step_cost`", StepCostConfig),
    ("Engine: `args.engine` of a model", EngineConfig),
    ("Node cache: `args.node_cache` of a model", NodeCacheConfig),
    ("One disk: `args.node_cache.disks[]`", DiskConfig),
    ("Object store: `args.node_cache.object_store`", ObjectStoreConfig),
    ("Paced engine: `args.engine.paced`", PacedConfig),
]


_NOISE = (
    *("typing.", "pathlib.", "datetime."),
    *("app.config.", "autoscaler.config.", "deployments.config.", "engine.config."),
)
"""What types are called beside their names."""


def render() -> str:
    """The whole page."""
    return "\n".join([_INTRODUCTION, *(_section(title, model) for title, model in _SECTIONS)])


def _section(title: str, model: type[BaseModel]) -> str:
    """Summary and table of one class."""
    texts = _field_docstrings(model)
    rows = [
        f"| `{name}` | {_type(field)} | {_default(field)} | {texts.get(name, '')} |"
        for name, field in model.model_fields.items()
    ]
    summary = " ".join((model.__doc__ or "").split()).replace("``", "`")
    return "\n".join(
        [
            f"## {title}",
            "",
            summary,
            "",
            "| key | type | default | |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )


def _field_docstrings(model: type[BaseModel]) -> dict[str, str]:
    """Text under each annotated field of the class body."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    assert isinstance(definition, ast.ClassDef)
    texts: dict[str, str] = {}
    for field, after in zip(definition.body, definition.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
        ):
            text = " ".join(str(after.value.value).split())
            texts[field.target.id] = text.replace("``", "`").replace("|", "\\|")
    return texts


def _type(field: FieldInfo) -> str:
    annotation: Any = field.annotation
    is_class = inspect.isclass(annotation) and not hasattr(annotation, "__args__")
    name = annotation.__name__ if is_class else str(annotation)
    for noise in _NOISE:
        name = name.replace(noise, "")
    bounds = [
        f"{sign} {getattr(rule, attribute):g}"
        for rule in field.metadata
        for attribute, sign in (("ge", "≥"), ("gt", ">"), ("le", "≤"))
        if getattr(rule, attribute, None) is not None
    ]
    return ", ".join([f"`{name}`", *bounds]).replace("|", "\\|")


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    default = field.get_default(call_default_factory=True)
    assert default is not PydanticUndefined
    return "see below" if isinstance(default, BaseModel) else f"`{default}`"


if __name__ == "__main__":
    sys.stdout.write(render())
