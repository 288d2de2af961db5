"""`benchmarks.serving --peer`: ours and the peers, started in turn, asked the same, compared."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from benchmarks.machine import REPOSITORY
from benchmarks.peer_environment import PeerEnvironmentError, peers_home
from benchmarks.result import BenchmarkResult
from benchmarks.serving_contestants import Contestant, headwater, running, serve_file_for
from benchmarks.serving_log import PathNames
from benchmarks.serving_peers import make_peer
from benchmarks.serving_process import ServerProcessError
from benchmarks.serving_rounds import Round, measure_rounds, measure_start
from benchmarks.serving_server import MeasurementError
from benchmarks.serving_versus_options import VersusOptions, parse_versus_options
from benchmarks.serving_versus_summary import (
    check_floors,
    median_start_s,
    speeds_of,
    table_of,
    versus_cases,
)
from deployments.environment import headwater_home, temporary_roots
from deployments.local_environment import free_port
from deployments.local_serve import MAX_FOLDER_BYTES
from deployments.private_dir import PrivateDir
from deployments.serve_file import read_serve_file
from engine.checkpoints.errors import CheckpointError
from engine.checkpoints.store import checkpoint_path, open_checkpoint

SERVE_FILE_NAME = "serve.yaml"


def run_versus(argv: Sequence[str]) -> int:
    """Run the comparison; 0 if a result was written, 1 if not, 130 if it was interrupted."""
    options = parse_versus_options(argv)
    # Ends like Ctrl-C, so that no server is left behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder = PrivateDir(temporary_roots(), max_bytes=MAX_FOLDER_BYTES)
    try:
        return _run(options, folder.path)
    except (
        CheckpointError,
        MeasurementError,
        OSError,
        PeerEnvironmentError,
        ServerProcessError,
    ) as error:
        print(f"benchmarks.serving: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("benchmarks.serving: interrupted, nothing was written", file=sys.stderr)
        return 130
    finally:
        folder.remove()


def _run(options: VersusOptions, folder: Path) -> int:
    model = _model_of(options.file)
    home = options.peer_home or peers_home(headwater_home())
    contestants = [_ours(options, model, folder), *_peers(options, model, home, folder)]
    names = PathNames(
        {
            **dict.fromkeys(temporary_roots(), "TMP"),
            home: "PEER_HOME",
            folder: "FOLDER",
            REPOSITORY: "REPOSITORY",
            Path(sys.executable).parent: "BIN",
            Path.home(): "~",
        }
    )
    compare_contestants(contestants, options, folder, names)
    return 0


def compare_contestants(
    contestants: Sequence[Contestant], options: VersusOptions, folder: Path, names: PathNames
) -> None:
    """Measure them in rounds, print the table, write the result.

    Raises MeasurementError or ServerProcessError, without a result then.
    """
    rounds = measure_rounds(
        contestants, options.num_rounds, partial(measure_start, options=options, folder=folder)
    )
    print(table_of(rounds))
    check_floors(rounds, options.floors)
    servers = {each.name: _describe_server(each, rounds[each.name], names) for each in contestants}
    BenchmarkResult.of_this_machine(
        name="serving",
        config={**_describe(options, folder), "servers": servers},
        seed=options.workload.seed,
        results=versus_cases(rounds, {each.name: each.label for each in contestants}),
    ).write(options.out)
    print(f"written to {options.out}")


def _model_of(file: Path) -> str:
    """The name of the one model that `file` serves, which must have been pulled."""
    read = read_serve_file(file)
    if read.faults:
        raise MeasurementError(read.describe(read.faults[0]))
    if len(read.models) != 1:
        raise MeasurementError(f"{file} must name one model, it names {len(read.models)}")
    return read.models[0].args.name


def _ours(options: VersusOptions, model: str, folder: Path) -> Contestant:
    if options.url is not None:
        return running(options.url, model)
    port = free_port()
    text = serve_file_for(
        options.file, port, num_threads=options.num_threads, num_replicas=options.num_replicas
    )
    file = folder / SERVE_FILE_NAME
    file.write_text(text, "utf-8")
    return headwater(file, model, port)


def _peers(options: VersusOptions, model: str, home: Path, folder: Path) -> list[Contestant]:
    model_folder = open_checkpoint(checkpoint_path(headwater_home(), model)).path
    return [
        make_peer(name, model=model, model_folder=model_folder, home=home, folder=folder)
        for name in options.peers
    ]


def _describe(options: VersusOptions, folder: Path) -> dict[str, Any]:
    file = folder / SERVE_FILE_NAME
    return {
        "peers": options.peers,
        "num_rounds": options.num_rounds,
        "concurrencies": options.concurrencies,
        "requests_per_client": options.requests_per_client,
        "run_timeout_s": options.run_timeout_s,
        **asdict(options.workload),
        "floors": [asdict(floor) for floor in options.floors],
        "serve_file": yaml.safe_load(file.read_text("utf-8")) if file.exists() else None,
    }


def _describe_server(
    contestant: Contestant, rounds: Sequence[Round], names: PathNames
) -> dict[str, Any]:
    return {
        **contestant.describe(names),
        "start_s": median_start_s(rounds),
        "tokens_per_s_of_rounds": speeds_of(rounds),
        "log_tail": [names.replace_in(line) for line in rounds[-1].log_tail],
    }
