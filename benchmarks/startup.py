"""How long `configs/quickstart.yaml` takes from its start to its first answer, beside a bare Serve
application: `python -m benchmarks.startup --out FILE`.

Both are started the way `headwater serve` starts a file, turn by turn, each with a Ray of its own.
The clock runs from the start of the process to the first successful answer: of one generated token
for Headwater, of the echo for the other. The model must be in the cache already, port 8000 free.
"""

import argparse
import statistics
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson
import yaml

from benchmarks.machine import REPOSITORY
from benchmarks.result import BenchmarkResult, CaseResult, paired_ratio
from benchmarks.statistics import MIN_PAIRS
from deployments.environment import headwater_home
from deployments.local_serve import LocalServe
from deployments.preflight import check_file, missing_models, this_machine
from deployments.serve_file import read_serve_file

QUICKSTART = REPOSITORY / "configs" / "quickstart.yaml"
HOST, PORT = "127.0.0.1", 8000
URL = f"http://{HOST}:{PORT}"
PEER = "bare Ray Serve echo application"
LIMIT_EXTRA_S = 8.0
START_TIMEOUT_S = 180.0
POLL_PERIOD_S = 0.05


@dataclass(frozen=True, slots=True)
class Contestant:
    """A file to start and the request whose answer ends the start."""

    file: Path
    path: str
    body: bytes | None

    def request(self) -> urllib.request.Request:
        headers = {"content-type": "application/json"}
        return urllib.request.Request(f"{URL}{self.path}", self.body, headers)  # noqa: S310


def quickstart() -> Contestant:
    config = yaml.safe_load(QUICKSTART.read_text("utf-8"))
    model = config["applications"][1]["name"]
    body = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    return Contestant(QUICKSTART, "/v1/chat/completions", orjson.dumps(body))


def echo(folder: Path) -> Contestant:
    config = {
        "http_options": {"host": HOST, "port": PORT},
        "proxy_location": "HeadOnly",
        "applications": [
            {"name": "echo", "route_prefix": "/", "import_path": "benchmarks.echo_app:app"}
        ],
    }
    file = folder / "echo.yaml"
    file.write_text(yaml.safe_dump(config), "utf-8")
    return Contestant(file, "/", None)


def check(contestant: Contestant) -> None:
    """Raises `RuntimeError` if something else would be measured: a download, another's answers."""
    file = read_serve_file(contestant.file)
    home = headwater_home()
    faults = [
        *(file.describe(fault) for fault in check_file(file, home=home, machine=this_machine())),
        *(f"pull {model.source} first" for model in missing_models(file, home)),
    ]
    if faults:
        raise RuntimeError("; ".join(faults))


def measure(contestant: Contestant) -> float:
    """Seconds from the start to the first answer; stops everything again."""
    check(contestant)
    started_s = time.monotonic()
    with LocalServe(contestant.file, health_url=URL) as serve:
        while not _is_answered(contestant.request()):
            elapsed_s = time.monotonic() - started_s
            if not serve.is_alive() or elapsed_s > START_TIMEOUT_S:
                serve.is_keeping_logs = True
                raise RuntimeError(f"{contestant.file} did not start, see {serve.logs}")
            time.sleep(POLL_PERIOD_S)
        return time.monotonic() - started_s


def measure_pairs(
    ours: Contestant,
    bare: Contestant,
    num_pairs: int,
    measure: Callable[[Contestant], float] = measure,
) -> tuple[list[float], list[float]]:
    """Seconds of both, pair by pair; who goes first changes, as the second finds a warm machine."""
    ours_s: list[float] = []
    echo_s: list[float] = []
    for pair in range(num_pairs):
        turns = [(ours, ours_s), (bare, echo_s)]
        for contestant, seconds in reversed(turns) if pair % 2 else turns:
            seconds.append(measure(contestant))
        print(f"pair {pair + 1}: Headwater {ours_s[-1]:.1f} s, bare Serve {echo_s[-1]:.1f} s")
    return ours_s, echo_s


def _is_answered(request: urllib.request.Request) -> bool:
    try:
        with urllib.request.urlopen(request, timeout=30.0) as response:  # noqa: S310  our own URL
            response.read()
            return bool(response.status == 200)
    except OSError:  # refused, or an HTTP error while a part is still starting
        return False


def results_of(ours_s: Sequence[float], echo_s: Sequence[float]) -> list[CaseResult]:
    """Medians over the pairs (ours_s[i], echo_s[i])."""
    extra_s = [ours - bare for ours, bare in zip(ours_s, echo_s, strict=True)]
    return [
        CaseResult(
            case="first_answer",
            value=statistics.median(ours_s),
            unit="s",
            peer=PEER,
            peer_value=statistics.median(echo_s),
            ratio=paired_ratio(ours_s, echo_s),
        ),
        CaseResult(
            case="later_than_bare_serve",
            value=statistics.median(extra_s),
            unit="s",
            limit=LIMIT_EXTRA_S,
        ),
    ]


def parse_options(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="result file")
    parser.add_argument("--pairs", type=int, default=MIN_PAIRS, help="interleaved A/B pairs")
    args = parser.parse_args(argv)
    if args.pairs < MIN_PAIRS:
        parser.error(f"--pairs must be at least {MIN_PAIRS}")
    return args


def main() -> None:
    args = parse_options()
    with tempfile.TemporaryDirectory() as folder:
        ours_s, echo_s = measure_pairs(quickstart(), echo(Path(folder)), args.pairs)
    BenchmarkResult.of_this_machine(
        name="startup",
        config={"pairs": args.pairs, "file": str(QUICKSTART.relative_to(REPOSITORY))},
        seed=0,
        results=results_of(ours_s, echo_s),
    ).write(args.out)


if __name__ == "__main__":
    main()
