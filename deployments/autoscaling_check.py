"""What can be known to be wrong with autoscaling before anything is started: the autoscaler's list
against the models' own bounds.

Looks only.
"""

from collections.abc import Iterator

from autoscaler.config import ModelScalingConfig
from deployments.config import AutoscalingArgs, ModelArgs
from deployments.faults import Fault, KeyPath
from deployments.serve_file import ServeFile


def check_autoscaling(file: ServeFile) -> Iterator[Fault]:
    models = {model.args.name: model for model in file.models}
    listed: set[str] = set()
    for number, section in enumerate(file.autoscalers):
        if number > 0:
            yield Fault("is a second autoscaler: one sizes all models", section.path)
        for position, scaling in enumerate(section.config.models):
            where = (*section.config_path, "models", position)
            model = models.get(scaling.name)
            listed.add(scaling.name)
            if model is None:
                message = f"no application serves the model {scaling.name!r}: add it"
                yield Fault(message, (*where, "name"))
            elif model.args.autoscaling is None:
                message = f"{scaling.name!r} has a fixed size: give its args autoscaling bounds"
                yield Fault(message, (*where, "name"))
            else:
                yield from _check_bounds(scaling, model.args.autoscaling, where)
                yield from _check_leads(scaling, model.args, where)
                if section.config.devices_per_node is not None and model.args.reserved_gpus > 0:
                    yield Fault(
                        f"replicas of {scaling.name!r} keep GPUs of their own while they sleep, so "
                        "that no node is shared: remove it",
                        (*section.config_path, "devices_per_node"),
                    )
    for name, model in models.items():
        if model.args.autoscaling is not None and name not in listed:
            what = "list it in the autoscaler's user_config"
            if not file.autoscalers:
                what = "set autoscaler: true in the gateway's args, and list it there"
            yield Fault(
                f"nobody sizes the model {name!r}, it would keep its first size for ever: {what}",
                (*model.path, "args", "autoscaling"),
            )


def _check_leads(scaling: ModelScalingConfig, args: ModelArgs, where: KeyPath) -> Iterator[Fault]:
    """Of rungs on which no node of the model's ever stands."""
    node_cache = args.node_cache
    weights = None if node_cache is None else node_cache.weights
    told: dict[str, float | None] = {
        "on_disk_start_s": scaling.on_disk_start_s,
        "staged_start_s": scaling.staged_start_s,
    }
    for name, lead_s in told.items():
        if lead_s is not None and weights is None:
            yield Fault(
                f"nodes don't hold the weights of {scaling.name!r}: give its args "
                "node_cache.weights, or remove it",
                (*where, name),
            )
        elif name == "staged_start_s" and lead_s is not None and weights and not weights.host_bytes:
            yield Fault(
                f"nodes hold the weights of {scaling.name!r} on disks only: give its args "
                "node_cache.weights.host_bytes, or remove it",
                (*where, name),
            )


def _check_bounds(
    scaling: ModelScalingConfig, args: AutoscalingArgs, where: KeyPath
) -> Iterator[Fault]:
    """Serve cuts every target to the bounds of the model's own args."""
    most = args.max_replicas if scaling.max_replicas is None else scaling.max_replicas
    if most > args.max_replicas:
        yield Fault(
            f"is {most}, but the model's own args allow {args.max_replicas}",
            (*where, "max_replicas"),
        )
    asked: dict[KeyPath, int | None] = {
        ("min_replicas",): scaling.min_replicas,
        ("num_replicas",): scaling.num_replicas,
    }
    for position, schedule in enumerate(scaling.schedules):
        asked["schedules", position, "min_replicas"] = schedule.min_replicas
    for path, number in asked.items():
        if number is not None and number > most:
            yield Fault(f"is {number}, but there are at most {most}", (*where, *path))
