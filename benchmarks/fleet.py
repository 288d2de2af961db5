"""A fleet of paced replicas under chat traffic, beside Serve's default router:
``python -m benchmarks.fleet --out FILE``.

Both fleets stand in one local Serve: the product's gateways and engine replicas, and as many of the
same gateways and engines with Serve's power-of-two-choices between them (`benchmarks.serve_peer`).
They are measured in turn, in interleaved pairs. The engines compute nothing: they take the time
that a 70B model takes on eight H100s (25 ms per step, 10,000 prompt tokens/s), so the figures are
of routing and queueing. The quickstart's model must be in the cache; its tokenizer is the real one.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import yaml
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.chat_workload import ChatWorkload
from benchmarks.fleet_file import PEER_PATH, FleetShape, fleets_file
from benchmarks.load import OpenLoop
from benchmarks.result import BenchmarkResult, CaseResult
from benchmarks.serving_options import parse_target
from benchmarks.serving_server import MeasurementError, Server
from benchmarks.serving_summary import compare
from benchmarks.statistics import MIN_PAIRS
from deployments.local_environment import free_port
from deployments.local_serve import LocalServe
from deployments.report import State

PEER = "the same engines behind Serve's power-of-two-choices"
START_TIMEOUT_S = 300.0
RUN_TIMEOUT_S = 600.0
ENGINE = {
    "runner": "paced",
    "kv_cache_bytes": 8 * 2**30,  # nominal: 370,000 tokens of the quickstart's model
    "max_num_seqs": 64,
    "max_num_batched_tokens": 1024,
    "paced": {"step_base_s": 0.025, "per_decode_s": 0.0001, "per_prefill_token_s": 0.0001},
}
PREDICTED = "headwater:prefix_predicted_tokens_total"
ACTUAL = "headwater:prefix_cached_tokens_total"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; 0 if a result was written, 1 if not."""
    options = _parse_options(argv)
    port = free_port()
    shape = FleetShape(options.model, options.replicas, options.gateways, ENGINE)
    try:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "fleet.yaml"
            file.write_text(yaml.safe_dump(fleets_file(shape, port)), "utf-8")
            with LocalServe(file, health_url=f"http://127.0.0.1:{port}/health") as local:
                report = local.wait_until_ready(threading.Event(), timeout_s=START_TIMEOUT_S)
                if report.state is not State.READY:
                    raise MeasurementError(f"Serve did not start: {report}")
                cases = asyncio.run(_measure(options, f"http://127.0.0.1:{port}"))
        BenchmarkResult.of_this_machine(
            name="fleet",
            config={**vars(options), "out": None, "engine": ENGINE, "workload": "chat"},
            seed=options.seed,
            results=cases,
        ).write(options.out)
    except (MeasurementError, OSError) as error:
        print(f"benchmarks.fleet: {error}", file=sys.stderr)
        return 1
    for case in cases:
        print(f"{case.case:<28}{case.value:>12.3f} {case.unit:<8} {case.peer_value} {case.ratio}")
    return 0


async def _measure(options: argparse.Namespace, url: str) -> list[CaseResult]:
    workload = ChatWorkload(seed=options.seed, mean_answer_tokens=options.answer_tokens)
    load = OpenLoop(
        options.rate,
        options.num_requests,
        RUN_TIMEOUT_S,
        options.seed,
        session_len=workload.session_len,
        think_s=options.think_s,
    )
    ours, peer = (
        Server(parse_target(base, model=model, api_key=None, allow_remote=False))
        for base, model in ((url, options.model), (url + PEER_PATH, "power_of_two"))
    )
    pairs, predicted, actual = [], 0.0, 0.0
    try:
        for server in (ours, peer):
            await server.warm_up(workload, 4 * options.replicas, RUN_TIMEOUT_S)
        for pair in range(options.pairs):
            runs: dict[bool, list[CaseResult]] = {}
            for is_peer in (False, True) if pair % 2 == 0 else (True, False):
                before = await asyncio.to_thread(_hits, url)
                server = peer if is_peer else ours
                runs[is_peer] = await server.run(load, workload, run=f"{pair}")
                after = await asyncio.to_thread(_hits, url)
                if not is_peer:
                    predicted += after[0] - before[0]
                    actual += after[1] - before[1]
            pairs.append((runs[False], runs[True]))
            print(f"pair {pair + 1}: {_means(runs[False])} {_means(runs[True])}", file=sys.stderr)
    finally:
        ours.close()
        peer.close()
    if not actual:
        raise MeasurementError("no prefix hit was counted: is /metrics whole?")
    return [
        *compare(pairs, PEER),
        CaseResult(case="prefix_hits_predicted", value=predicted, unit="tokens"),
        CaseResult(case="prefix_hits_actual", value=actual, unit="tokens"),
        CaseResult(case="prefix_hits_ratio", value=predicted / actual, unit="1", limit=1.0),
    ]


def _means(run: list[CaseResult]) -> str:
    values = {case.case: case.value for case in run}
    return f"{values['ttft_mean']:.0f} ms ({values['errors']:.0f} errors)"


def _hits(url: str) -> tuple[float, float]:
    """Prompt tokens that routers expected in the caches, and that engines found there."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as response:  # noqa: S310  our own
        text = response.read().decode()
    sums = dict.fromkeys((PREDICTED, ACTUAL), 0.0)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name in sums:
                sums[sample.name] += sample.value
    return sums[PREDICTED], sums[ACTUAL]


def _parse_options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet", description=__doc__)
    add = parser.add_argument
    add("--out", type=Path, required=True, help="result file to write")
    add("--model", default="smollm2-135m-instruct", help="whose tokenizer is used")
    add("--replicas", type=int, default=8, help="engine replicas of each fleet")
    add("--gateways", type=int, default=2, help="gateways of each fleet")
    add("--rate", type=float, default=10.0, help="requests per second")
    add("--num-requests", type=int, default=300, help="of each run")
    add("--answer-tokens", type=int, default=40, help="mean of an answer; the design case has 400")
    add("--think-s", type=float, default=0.5, help="mean pause between turns")
    add("--pairs", type=int, default=MIN_PAIRS, help="interleaved pairs of runs")
    add("--seed", type=int, default=0, help="of sessions and arrivals")
    options = parser.parse_args(argv)
    if options.pairs < MIN_PAIRS:
        parser.error(f"--pairs must be at least {MIN_PAIRS}")
    return options


if __name__ == "__main__":
    sys.exit(main())
