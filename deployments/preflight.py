"""What can be known to be wrong before anything is started: names, models on disk, autoscaling,
port, memory, node caches and their weights.

Looks only; starts, writes and downloads nothing.
"""

import errno
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
from ray._private.accelerators import get_accelerator_manager_for_resource

from deployments.autoscaling_check import check_autoscaling
from deployments.config import ModelArgs
from deployments.faults import Fault, KeyPath
from deployments.node_cache_check import check_node_caches, node_cache_bytes
from deployments.node_weights_check import check_node_weights
from deployments.serve_file import ServeFile
from engine.available_memory import available_memory_bytes
from engine.checkpoints.errors import CheckpointError, MissingCheckpoint
from engine.checkpoints.pull import create_source
from engine.checkpoints.store import Checkpoint, checkpoint_path, open_checkpoint
from engine.errors import EngineConfigError
from engine.sizing import estimate_memory, reason_against_compiled, size_engine

MIB = 1024 * 1024

PROCESS_BYTES = 400 * MIB
"""Rough resident size of a replica and its step loop besides weights, workspace and KV."""
RANK_BYTES = 200 * MIB
"""The same for each further rank, without what it shares with the first: 161 MiB were measured with
a tiny model, of 262 MiB resident, most of them torch."""
PACED_RANK_BYTES = 40 * MIB
"""The same without torch: 27 MiB were measured, of 47 MiB resident."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What this machine can give."""

    num_cpus: float
    available_memory_bytes: int
    num_gpus: int = 0


def this_machine() -> Machine:
    """Measured now; the limits of containers count."""
    gpus = get_accelerator_manager_for_resource("GPU")  # whom Ray asks, too
    return Machine(
        num_cpus=float(psutil.cpu_count() or 1),
        available_memory_bytes=available_memory_bytes(),
        num_gpus=gpus.get_current_node_num_accelerators(),
    )


def check_file(file: ServeFile, *, home: Path, machine: Machine) -> list[Fault]:
    """Everything there is to complain about; what the file says comes first and alone."""
    if file.faults:
        return file.faults
    return [
        *check_names(file),
        *check_models(file, home),
        *check_autoscaling(file),
        *check_port(file),
        *check_resources(file, home, machine),
        *check_node_caches(file, machine.available_memory_bytes),
        *check_node_weights(file, home, machine.available_memory_bytes),
    ]


def check_for_elsewhere(file: ServeFile, home: Path) -> list[Fault]:
    """The same for a file that other machines serve: without this one's port, memory and disks."""
    if file.faults:
        return file.faults
    return [*check_names(file), *check_models(file, home), *check_autoscaling(file)]


def check_names(file: ServeFile) -> Iterator[Fault]:
    """Applications, models and the gateway's list must agree."""
    seen: set[str] = set()
    for model in file.models:
        name = model.args.name
        if name in seen:
            yield Fault(f"model {name!r} stands twice", (*model.path, "args", "name"))
        elif model.application != name:
            message = f"must be {name!r} like the model: gateways find its replicas by that name"
            yield Fault(message, (*model.path, "name"))
        if model.route_prefix is not None:
            message = "must be null: clients reach a model through the gateway"
            yield Fault(message, (*model.path, "route_prefix"))
        seen.add(name)
    for gateway in file.gateways:
        for position, route in enumerate(gateway.config.models):
            if route.name not in seen:
                where = (*gateway.config_path, "models", position, "name")
                yield Fault(f"no application serves the model {route.name!r}: add it", where)


def check_models(file: ServeFile, home: Path) -> Iterator[Fault]:
    """Every model is on this machine and sound, or can be asked for from its source."""
    for model in file.models:
        args = model.args
        path = (*model.path, "args", "source")
        try:
            create_source(args.source)
            checkpoint = open_checkpoint(checkpoint_path(home, args.name))
            size_engine(args.engine, checkpoint)
        except MissingCheckpoint:
            continue  # will be pulled
        except CheckpointError as error:
            yield Fault(str(error), path)
        except EngineConfigError as error:
            yield Fault(str(error), (*model.path, "args", "engine"))
        else:
            yield from _check_pins(args, checkpoint, (*model.path, "args"))
            yield from _check_compiled(args, checkpoint, (*model.path, "args", "engine"))


def _check_pins(args: ModelArgs, checkpoint: Checkpoint, path: KeyPath) -> Iterator[Fault]:
    manifest = checkpoint.manifest
    pins = [("weights_sha256", "what is stored", args.weights_sha256, checkpoint.revision)]
    if manifest.source == args.source:  # another source is pulled anew
        pins.append(("source_sha256", args.source, args.source_sha256, manifest.source_sha256))
    for key, what, pinned, stored in pins:
        if pinned is not None and pinned.lower() != stored:
            yield Fault(f"{what} has sha256 {stored}, not the pinned {pinned}", (*path, key))


def _check_compiled(args: ModelArgs, checkpoint: Checkpoint, path: KeyPath) -> Iterator[Fault]:
    reason = reason_against_compiled(args.engine, checkpoint)
    if args.engine.compiled == "require" and reason is not None:
        yield Fault(f"the compiled step can't be used: {reason}", (*path, "compiled"))


def describe_steps(file: ServeFile, home: Path) -> Iterator[str]:
    """What computes each model that is on this machine; there is nothing wrong with any."""
    for args in (model.args for model in file.models):
        if args.engine.runner == "paced":
            continue
        try:
            checkpoint = open_checkpoint(checkpoint_path(home, args.name))
        except MissingCheckpoint:
            continue
        reason = reason_against_compiled(args.engine, checkpoint)
        who = "the compiled step runs" if reason is None else f"torch runs ({reason})"
        yield f"model {args.name}: {who} its layers"


def missing_models(file: ServeFile, home: Path) -> list[ModelArgs]:
    """Those that have to be pulled before they can be served."""
    models = (model.args for model in file.models)
    return [args for args in models if not checkpoint_path(home, args.name).exists()]


def check_port(file: ServeFile) -> Iterator[Fault]:
    """The port that clients will use must be free."""
    host, port = file.http_host, file.http_port
    if not 1 <= port <= 65535:
        yield Fault(f"must be from 1 to 65535, not {port}", ("http_options", "port"))
        return
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                message = f"port {port} of {host} is in use: stop what listens there or change it"
            else:
                message = f"cannot listen on {host}:{port}: {error.strerror}"
            yield Fault(message, ("http_options", "port"))


def check_resources(file: ServeFile, home: Path, machine: Machine) -> Iterator[Fault]:
    """Processors and memory for all replicas of the file on this one machine."""
    num_cpus = sum(gateway.args.num_cpus * gateway.num_replicas for gateway in file.gateways)
    num_cpus += sum(model.args.reserved_cpus * model.num_replicas for model in file.models)
    if num_cpus > machine.num_cpus:
        yield Fault(
            f"the replicas reserve {num_cpus:g} CPUs, this machine has {machine.num_cpus:g}: "
            "lower num_replicas or num_cpus"
        )
    num_gpus = sum(model.args.reserved_gpus * model.num_replicas for model in file.models)
    if num_gpus > machine.num_gpus:
        yield Fault(
            f"the replicas reserve {num_gpus:g} GPUs, this machine has {machine.num_gpus}: "
            "`serve deploy` the file onto a cluster that has them, or change num_gpus"
        )
    on_cpu = [model for model in file.models if model.args.engine.device == "cpu"]
    kv_bytes = sum(model.args.engine.kv_cache_bytes * model.num_replicas for model in on_cpu)
    process_bytes = sum(_process_bytes(model.args, home) * model.num_replicas for model in on_cpu)
    cache_bytes = node_cache_bytes(file)
    if cache_bytes > machine.available_memory_bytes:
        cache_bytes = 0  # a fault of its own
    if kv_bytes + process_bytes + cache_bytes > machine.available_memory_bytes:
        cache = f", the node's cache {cache_bytes // MIB} MiB" if cache_bytes else ""
        yield Fault(
            f"the KV pools need {kv_bytes // MIB} MiB and their processes about "
            f"{process_bytes // MIB} MiB{cache}, {machine.available_memory_bytes // MIB} MiB are "
            f"free: lower engine.kv_cache_bytes{', host_bytes' if cache else ''} or num_replicas"
        )


def _process_bytes(args: ModelArgs, home: Path) -> int:
    """Of one replica; with weights and workspace only if the model is here and is computed."""
    num_further = args.engine.tensor_parallel_size - 1
    if args.engine.runner == "paced":
        return PROCESS_BYTES + num_further * PACED_RANK_BYTES
    num_bytes = PROCESS_BYTES + num_further * RANK_BYTES
    try:
        checkpoint = open_checkpoint(checkpoint_path(home, args.name))
        return num_bytes + estimate_memory(args.engine, checkpoint).computing_bytes
    except (CheckpointError, EngineConfigError):
        return num_bytes  # `check_models` says what is wrong with it
