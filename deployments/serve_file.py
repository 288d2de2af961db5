"""Reads a `serve run` file as strictly as can be: syntax, Serve's keys, every typed `args:`.

Serve itself passes over keys it does not know, so a typing error would silently be a default; here
it is a fault. Builders are imported to see what they take, nothing is started.
"""

import inspect
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from ray._common.utils import import_attr
from ray.serve.schema import (
    DeploymentSchema,
    HTTPOptionsSchema,
    ServeApplicationSchema,
    ServeDeploySchema,
)

from app.config import GatewayConfig
from autoscaler.config import AutoscalerConfig
from deployments.build import AUTOSCALER_DEPLOYMENT, GATEWAY_DEPLOYMENT
from deployments.config import GatewayArgs, ModelArgs
from deployments.discovery import ENGINE_DEPLOYMENT
from deployments.faults import Fault, KeyPath, from_validation, line_of, unknown_key


@dataclass(frozen=True, slots=True)
class GatewaySection:
    """A gateway's application."""

    args: GatewayArgs
    num_replicas: int
    """At the start."""
    config: GatewayConfig
    config_path: KeyPath


@dataclass(frozen=True, slots=True)
class AutoscalerSection:
    """The autoscaler in a gateway's application."""

    path: KeyPath
    """Where it is asked for."""
    config: AutoscalerConfig
    config_path: KeyPath


@dataclass(frozen=True, slots=True)
class ModelSection:
    """A model's application."""

    path: KeyPath
    application: str
    route_prefix: str | None
    args: ModelArgs
    num_replicas: int
    """At the start; at most, where the autoscaler finds the number."""


@dataclass(slots=True)
class ServeFile:
    """What a file says, as far as it could be read; complete only without faults."""

    path: Path
    document: yaml.Node | None = None
    http_host: str = "127.0.0.1"
    http_port: int = 8000
    gateways: list[GatewaySection] = field(default_factory=list)
    autoscalers: list[AutoscalerSection] = field(default_factory=list)
    models: list[ModelSection] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)

    def describe(self, fault: Fault) -> str:
        """`file:line: path: what is wrong`."""
        line = line_of(self.document, fault.path)
        return f"{self.path}{f':{line}' if line else ''}: {fault}"


def read_serve_file(path: Path) -> ServeFile:
    """Never raises for what stands in the file: that is in `faults`."""
    file = ServeFile(path)
    try:
        text = path.read_text("utf-8")
        file.document = yaml.compose(text, Loader=yaml.SafeLoader)
        data = yaml.safe_load(text)
    except OSError as error:
        file.faults.append(Fault(f"cannot be read: {error.strerror}"))
        return file
    except UnicodeDecodeError as error:
        file.faults.append(Fault(f"is not UTF-8 text: {error.reason} at byte {error.start}"))
        return file
    except yaml.YAMLError as error:
        file.faults.append(Fault(_yaml_problem(error)))
        return file
    if not isinstance(data, dict):
        file.faults.append(Fault("must be a mapping with the key 'applications'"))
        return file
    if file.document is not None:
        file.faults.extend(_repeated_keys(file.document, (), set()))
    file.faults.extend(_unknown_serve_keys(data))
    try:
        schema = ServeDeploySchema.model_validate(data)
    except ValidationError as error:
        file.faults.extend(from_validation(error, (), ()))
        return file
    file.http_host, file.http_port = schema.http_options.host, schema.http_options.port
    for position, application in enumerate(schema.applications):
        _read_application(file, ("applications", position), application)
    return file


def _yaml_problem(error: yaml.YAMLError) -> str:
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return f"is not YAML: {str(error).splitlines()[0]}"
    mark = error.problem_mark
    return f"is not YAML: {error.problem} at line {mark.line + 1}, column {mark.column + 1}"


def _repeated_keys(node: yaml.Node, path: KeyPath, visited: set[int]) -> Iterator[Fault]:
    """YAML lets the last one win without a word."""
    if id(node) in visited:
        return  # an alias, which may even lead back to where we are
    visited.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for position, item in enumerate(node.value):
            yield from _repeated_keys(item, (*path, position), visited)
    elif isinstance(node, yaml.MappingNode):
        keys: set[str] = set()
        for key, value in node.value:
            name = str(key.value)
            if name in keys:
                yield Fault("stands twice: remove one", (*path, name))
            keys.add(name)
            yield from _repeated_keys(value, (*path, name), visited)


def _unknown_serve_keys(data: Mapping[str, Any]) -> Iterator[Fault]:
    yield from _unknown_keys(data, ServeDeploySchema, ())
    yield from _unknown_keys(data.get("http_options"), HTTPOptionsSchema, ("http_options",))
    applications = data.get("applications")
    for position, application in enumerate(applications if isinstance(applications, list) else []):
        path: KeyPath = ("applications", position)
        yield from _unknown_keys(application, ServeApplicationSchema, path)
        deployments = application.get("deployments") if isinstance(application, dict) else None
        for index, deployment in enumerate(deployments if isinstance(deployments, list) else []):
            yield from _unknown_keys(deployment, DeploymentSchema, (*path, "deployments", index))


def _unknown_keys(data: object, schema: type[BaseModel], path: KeyPath) -> Iterator[Fault]:
    if isinstance(data, dict):
        known = schema.model_fields.keys()
        yield from (unknown_key(str(key), known, path) for key in data if key not in known)


def _read_application(file: ServeFile, path: KeyPath, application: ServeApplicationSchema) -> None:
    try:
        builder = import_attr(application.import_path)
    except Exception as error:  # whatever a module of the user's raises while it is imported
        message = f"cannot import {application.import_path!r}: {error}"
        file.faults.append(Fault(message, (*path, "import_path")))
        return
    args_type = _args_type(builder)
    if args_type is None:
        return  # an application of somebody else's that takes plain values
    try:
        args = args_type.model_validate(application.args)
    except ValidationError as error:
        known = _all_keys(args_type)
        file.faults.extend(from_validation(error, (*path, "args"), known))
        return
    if isinstance(args, ModelArgs):
        options, where = _overrides(file, path, application, [ENGINE_DEPLOYMENT])[0]
        if args.autoscaling is not None:
            file.faults.extend(_two_sizes(options, where))
        num_replicas = _num_replicas(options, args.most_replicas)
        file.models.append(
            ModelSection(path, application.name, application.route_prefix, args, num_replicas)
        )
    elif isinstance(args, GatewayArgs):
        _read_gateway(file, path, application, args)


def _read_gateway(
    file: ServeFile, path: KeyPath, application: ServeApplicationSchema, args: GatewayArgs
) -> None:
    names = [GATEWAY_DEPLOYMENT, *([AUTOSCALER_DEPLOYMENT] if args.autoscaler else [])]
    (options, where), *rest = _overrides(file, path, application, names)
    try:
        config = GatewayConfig.model_validate(options.get("user_config") or {})
    except ValidationError as error:
        known = _all_keys(GatewayConfig)
        file.faults.extend(from_validation(error, (*where, "user_config"), known))
        return
    prefix = application.route_prefix
    if prefix is None or not prefix.startswith("/"):
        message = f"must begin with '/', not be {prefix!r}: clients reach the gateway below it"
        file.faults.append(Fault(message, (*path, "route_prefix")))
    num_replicas = _num_replicas(options, args.num_replicas)
    file.gateways.append(GatewaySection(args, num_replicas, config, (*where, "user_config")))
    for overrides in rest:
        _read_autoscaler(file, path, *overrides)


def _read_autoscaler(
    file: ServeFile, path: KeyPath, options: Mapping[str, Any], where: KeyPath
) -> None:
    config_path = (*where, "user_config")
    try:
        config = AutoscalerConfig.model_validate(options.get("user_config") or {})
    except ValidationError as error:
        known = _all_keys(AutoscalerConfig)
        file.faults.extend(from_validation(error, config_path, known))
        return
    asked = (*path, "args", "autoscaler")
    file.autoscalers.append(AutoscalerSection(asked, config, config_path))


def _overrides(
    file: ServeFile,
    path: KeyPath,
    application: ServeApplicationSchema,
    names: Sequence[str],
) -> list[tuple[Mapping[str, Any], KeyPath]]:
    """What the file sets of each of these deployments, and where it stands."""
    nothing: tuple[Mapping[str, Any], KeyPath] = ({}, (*path, "deployments"))
    found = dict.fromkeys(names, nothing)
    for position, deployment in enumerate(application.deployments):
        where = (*path, "deployments", position)
        if deployment.name in found:
            found[deployment.name] = (deployment.model_dump(exclude_unset=True), where)
        else:
            message = f"no deployment is called so here: use {' or '.join(names)}"
            if deployment.name == AUTOSCALER_DEPLOYMENT:
                message = "there is none without autoscaler: true in the gateway's args"
            file.faults.append(Fault(message, (*where, "name")))
    return list(found.values())


def _two_sizes(options: Mapping[str, Any], where: KeyPath) -> Iterator[Fault]:
    """Serve would take these in place of the model's own, and leave the autoscaler out."""
    for key in ("num_replicas", "autoscaling_config"):
        if key in options:
            yield Fault("args.autoscaling says how many: remove it", (*where, key))


def _num_replicas(options: Mapping[str, Any], from_args: int) -> int:
    """What Serve starts: a fixed number, else what its autoscaling begins with."""
    num_replicas = options.get("num_replicas")
    if isinstance(num_replicas, int):
        return num_replicas
    autoscaling = options.get("autoscaling_config") or {}
    if num_replicas == "auto" or autoscaling:
        return int(autoscaling.get("initial_replicas") or autoscaling.get("min_replicas", 1))
    return from_args


def _args_type(builder: object) -> type[BaseModel] | None:
    """Type of a builder's one argument, as Serve finds it."""
    if not inspect.isfunction(builder):
        return None
    parameters = list(inspect.signature(builder).parameters.values())
    annotation = parameters[0].annotation if len(parameters) == 1 else None
    is_model = inspect.isclass(annotation) and issubclass(annotation, BaseModel)
    return annotation if is_model else None


def _all_keys(model: type[BaseModel]) -> set[str]:
    """Keys of a configuration and of the sections in it."""
    keys = set(model.model_fields)
    for info in model.model_fields.values():
        for part in (info.annotation, *typing.get_args(info.annotation)):
            if inspect.isclass(part) and issubclass(part, BaseModel):
                keys |= _all_keys(part)
    return keys
