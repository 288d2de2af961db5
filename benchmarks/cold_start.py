"""How fast weights climb to where tokens come from, and what is never served on the way:
``python -m benchmarks.cold_start --out FILE``.

- ``rungs``: each rung of the warm ladder beside the medium that it climbs over, for a made
  checkpoint of 4 GB and for the quickstart's model, and what that would mean for a 70B: a
  projection.
- ``start``: seconds to the first token from each rung, with the time of each stage.
- ``broadcast``: four nodes behind links load in little more than the time of one. Needs root.
- ``faults``: a thousand things that go wrong, after each of which all that is offered is whole.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from benchmarks.cold_start_broadcast import FULL, SHORT, measure_broadcast
from benchmarks.cold_start_campaign import measure_faults
from benchmarks.cold_start_links import why_no_links
from benchmarks.cold_start_model import LARGE, MIDDLE, SOURCE, write_checkpoint
from benchmarks.cold_start_projection import project
from benchmarks.cold_start_rungs import LINK_BYTES_PER_S, RungCases, Subject, reached
from benchmarks.cold_start_starts import StartCases
from benchmarks.result import BenchmarkResult, CaseResult, ResultError
from benchmarks.statistics import MIN_PAIRS
from deployments.environment import headwater_home
from engine.checkpoints.manifest import write_manifest
from engine.checkpoints.store import checkpoint_path, open_checkpoint
from engine.errors import EngineError

CASES = ("rungs", "start", "broadcast", "faults")
_MODEL = "smollm2-135m-instruct"
_NUM_FAULTS, _NUM_FAULTS_SHORT = 1000, 40
_NUM_STARTS, _NUM_STARTS_SHORT = 5, 1


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; 0 if a result was written and nothing half loaded was offered."""
    options = _parse_options(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # mounts, links and processes go, too
    try:
        # Short: sockets lie below it.
        with tempfile.TemporaryDirectory(prefix="hw-", dir=options.folder) as folder:
            results, is_sound = _measure(options, Path(folder))
        BenchmarkResult.of_this_machine(
            name="cold_start",
            config={
                "cases": options.case,
                "pairs": options.pairs,
                "short": options.short,
                "faults": options.faults,
                "link_bytes_per_s": LINK_BYTES_PER_S,
            },
            seed=options.seed,
            results=results,
        ).write(options.out)
    except (EngineError, ResultError, OSError) as error:
        print(f"benchmarks.cold_start: {error}", file=sys.stderr)
        return 1
    return 0 if is_sound else 1


def _measure(options: argparse.Namespace, scratch: Path) -> tuple[list[CaseResult], bool]:
    results: list[CaseResult] = []
    measures: Mapping[str, Callable[[], list[CaseResult]]] = {
        "rungs": lambda: _rungs(options, scratch),
        "start": lambda: _starts(options, scratch),
        "broadcast": lambda: _broadcast(options, scratch),
    }
    for case, measure in measures.items():
        if case in options.case:
            results += measure()
    is_sound = True
    if "faults" in options.case:
        cases, is_sound = measure_faults(options.faults, options.seed, scratch)
        results += cases
    return results, is_sound


def _rungs(options: argparse.Namespace, scratch: Path) -> list[CaseResult]:
    made = Subject("made_256mb" if options.short else "made_4gb", scratch / "made")
    write_checkpoint(made.folder, MIDDLE if options.short else LARGE)
    results = _climbs(RungCases(made, options.pairs, scratch))
    projection = project(reached(results, made.name))
    shutil.rmtree(made.folder)
    small = Subject("made_256mb", scratch / "small")
    write_checkpoint(small.folder, MIDDLE)  # moto is too slow for more
    results.append(RungCases(small, options.pairs, scratch).moto())
    if options.checkpoint.exists():
        real = _copy_of(options.checkpoint, scratch / "real")
        results += _climbs(RungCases(real, options.pairs, scratch))
    return [*results, *projection]


def _climbs(cases: RungCases) -> list[CaseResult]:
    return [
        cases.store("store"),
        cases.store("store_behind_link", LINK_BYTES_PER_S),
        cases.disk(),
        *cases.peer_and_staged(),
    ]


def _starts(options: argparse.Namespace, scratch: Path) -> list[CaseResult]:
    if not options.checkpoint.exists():
        raise ResultError(f"there is no model at {options.checkpoint}: pull it first")
    subject = _copy_of(options.checkpoint, scratch / "start")
    num_runs = _NUM_STARTS_SHORT if options.short else _NUM_STARTS
    return StartCases(subject, num_runs, scratch).measure()


def _broadcast(options: argparse.Namespace, scratch: Path) -> list[CaseResult]:
    reason = why_no_links()
    if reason is not None:
        print(f"broadcast is left out: {reason}", flush=True)
        return []
    return measure_broadcast(SHORT if options.short else FULL, scratch)


def _copy_of(checkpoint: Path, folder: Path) -> Subject:
    """The files of its manifest alone, as a source would hold them."""
    folder.mkdir()
    manifest = open_checkpoint(checkpoint).manifest
    for name in manifest.files:
        shutil.copy2(checkpoint / name, folder / name)  # times, too
    write_manifest(folder, msgspec.structs.replace(manifest, source=SOURCE, source_stamp=""))
    return Subject(checkpoint.name, folder)


def _parse_options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cold_start",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, required=True, help="result file to write")
    parser.add_argument(
        "--case", nargs="+", choices=CASES, default=list(CASES), help="only these; all if left out"
    )
    parser.add_argument("--pairs", type=int, default=MIN_PAIRS, help="interleaved A/B pairs")
    parser.add_argument("--short", action="store_true", help="a minute, to see that it works")
    parser.add_argument("--faults", type=int, help="how many; 1,000 if left out, 40 in short")
    parser.add_argument("--seed", type=int, default=0, help="another one does harm elsewhere")
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path(tempfile.gettempdir()),
        help="on the disk that is measured",
    )
    parser.add_argument(
        "--checkpoint",
        type=Path,
        default=checkpoint_path(headwater_home(), _MODEL),
        help="the real model's folder",
    )
    options = parser.parse_args(argv)
    if options.pairs < MIN_PAIRS:
        parser.error(f"--pairs must be at least {MIN_PAIRS}")
    if options.faults is None:
        options.faults = _NUM_FAULTS_SHORT if options.short else _NUM_FAULTS
    if options.faults < 1:
        parser.error("--faults must be at least 1")
    return options


if __name__ == "__main__":
    sys.exit(main())
