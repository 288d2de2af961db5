"""What HTTP, gateway and channel cost: ``python -m benchmarks.chain --out FILE``.

The same requests are asked of a served fleet and of as many engines with nothing before them, in
turn, at concurrency 1 and 16. Start the fleet first, as by ``make serve``; it idles while the
offline engines run.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from transformers import AutoTokenizer

from benchmarks.load import ClosedLoop
from benchmarks.offline_fleet import OfflineFleet, OfflineLoad
from benchmarks.result import BenchmarkResult, CaseResult
from benchmarks.serving_options import parse_target
from benchmarks.serving_server import MeasurementError, Server
from benchmarks.statistics import MIN_PAIRS, paired_ratio, percentile
from benchmarks.workload import Workload, make_prompt
from deployments.environment import headwater_home
from deployments.serve_file import ModelSection, read_serve_file
from engine.checkpoints.store import Checkpoint, checkpoint_path, open_checkpoint
from engine.config import EngineSpec
from engine.errors import CheckpointError

TIMEOUT_S = 120.0
CASES = {1: 8, 16: 64}
"""Concurrency to requests of one run."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; 0 if a result was written, 1 if not."""
    options = _parse_options(argv)
    workload = Workload(prompt_words=17, output_tokens=64, seed=0)
    try:
        model = _model_of(options.file)
        checkpoint = open_checkpoint(checkpoint_path(headwater_home(), model.args.name))
        spec = EngineSpec(
            model=model.args.name, checkpoint=checkpoint.path, config=model.args.engine
        )
        offline = _Offline(OfflineFleet(spec, model.num_replicas), checkpoint, workload)
        target = parse_target(options.url, model=spec.model, api_key=None, allow_remote=False)
        try:
            cases = asyncio.run(_measure(Server(target), offline, workload, options.pairs))
        finally:
            offline.fleet.close()
        BenchmarkResult.of_this_machine(
            name="chain",
            config={
                "url": options.url,
                "pairs": options.pairs,
                "prompt_words": workload.prompt_words,
                "output_tokens": workload.output_tokens,
                "num_replicas": model.num_replicas,
                "engine": spec.config.model_dump(mode="json"),
            },
            seed=workload.seed,
            results=cases,
        ).write(options.out)
    except (CheckpointError, MeasurementError, OSError, ValueError) as error:
        print(f"benchmarks.chain: {error}", file=sys.stderr)
        return 1
    for case in cases:
        ratio = "" if case.ratio is None else f"  ratio {case.ratio.median:.3f}"
        print(f"{case.case:<28}{case.value:>10.2f} {case.unit:<6}{case.peer_value!s:>24}{ratio}")
    return 0


@dataclass(frozen=True, slots=True)
class _Run:
    """One side of a pair."""

    tokens_per_s: float
    ttft_ms: float
    """Median."""


class _Offline:
    """The engines without a server, asked the same as the server."""

    def __init__(self, fleet: OfflineFleet, checkpoint: Checkpoint, workload: Workload) -> None:
        self.fleet = fleet
        self._checkpoint = checkpoint
        self._workload = workload
        self._tokenizer = AutoTokenizer.from_pretrained(checkpoint.path)

    def run(self, run: str, concurrency: int, num_requests: int) -> _Run:
        """Requests split evenly over the engines."""
        prompts = [
            self._tokenizer.apply_chat_template(
                [{"role": "user", "content": make_prompt(self._workload, run, index)}],
                add_generation_prompt=True,
                return_dict=False,
            )
            for index in range(num_requests)
        ]
        num_engines = min(concurrency, len(self.fleet))
        loads = [
            OfflineLoad(
                run=run,
                prompts=prompts[number::num_engines],
                concurrency=concurrency // num_engines,
                max_tokens=self._workload.output_tokens,
                stop_token_ids=self._checkpoint.eos_token_ids,
            )
            for number in range(num_engines)
        ]
        outcomes = self.fleet.run(loads)
        duration_s = max(o.end_s for o in outcomes) - min(o.start_s for o in outcomes)
        ttfts_s = [ttft_s for outcome in outcomes for ttft_s in outcome.ttfts_s]
        num_tokens = sum(outcome.num_tokens for outcome in outcomes)
        return _Run(num_tokens / duration_s, percentile(ttfts_s, 50.0) * 1e3)


async def _measure(
    server: Server, offline: _Offline, workload: Workload, num_pairs: int
) -> list[CaseResult]:
    cases: list[CaseResult] = []
    try:
        await server.warm_up(workload, 32, TIMEOUT_S)
        for concurrency, num_requests in CASES.items():
            pairs = [
                await _measure_pair(server, offline, workload, concurrency, num_requests, pair)
                for pair in range(num_pairs)
            ]
            cases += _summarize(concurrency, pairs)
    finally:
        server.close()
    return cases


async def _measure_pair(
    server: Server,
    offline: _Offline,
    workload: Workload,
    concurrency: int,
    num_requests: int,
    pair: int,
) -> tuple[_Run, _Run]:
    """The same requests served and offline; which goes first alternates."""
    run = f"{concurrency}/{pair}"
    if pair % 2:
        bare = offline.run(run, concurrency, num_requests)
    load = ClosedLoop(concurrency, num_requests, TIMEOUT_S)
    cases = {case.case: case.value for case in await server.run(load, workload, run=run)}
    served = _Run(cases["output_tokens_per_s"], cases["ttft_p50"])
    if not pair % 2:
        bare = offline.run(run, concurrency, num_requests)
    print(f"concurrency {concurrency}, pair {pair + 1}: {served} {bare}", file=sys.stderr)
    return served, bare


def _summarize(concurrency: int, pairs: Sequence[tuple[_Run, _Run]]) -> list[CaseResult]:
    def compare(name: str, unit: str, served: list[float], bare: list[float]) -> CaseResult:
        return CaseResult(
            case=f"c{concurrency}_{name}",
            value=percentile(served, 50.0),
            unit=unit,
            peer="engine offline",
            peer_value=percentile(bare, 50.0),
            ratio=paired_ratio(served, bare),
        )

    speeds = [[side.tokens_per_s for side in pair] for pair in pairs]
    ttfts = [[side.ttft_ms for side in pair] for pair in pairs]
    added_ms = percentile([served - bare for served, bare in ttfts], 50.0)
    return [
        compare("output_tokens_per_s", "tok/s", [s for s, _ in speeds], [b for _, b in speeds]),
        compare("ttft_p50", "ms", [s for s, _ in ttfts], [b for _, b in ttfts]),
        CaseResult(case=f"c{concurrency}_ttft_p50_added", value=added_ms, unit="ms"),
    ]


def _model_of(path: Path) -> ModelSection:
    file = read_serve_file(path)
    if file.faults:
        raise ValueError(file.describe(file.faults[0]))
    if len(file.models) != 1:
        raise ValueError(f"{path} must name one model, it names {len(file.models)}")
    return file.models[0]


def _parse_options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chain", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="result file to write")
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="the served fleet")
    parser.add_argument(
        "--file", type=Path, default=Path("configs/quickstart.yaml"), help="what it serves"
    )
    parser.add_argument("--pairs", type=int, default=MIN_PAIRS, help="interleaved A/B pairs")
    options = parser.parse_args(argv)
    if options.pairs < MIN_PAIRS:
        parser.error(f"--pairs must be at least {MIN_PAIRS}")
    return options


if __name__ == "__main__":
    sys.exit(main())
