"""The router over HTTP beside Ray's: ``python -m benchmarks.routing_http --out FILE``.

Two fleets of the same engines stand in one local Serve: the product's, and one behind Serve's own
request routers (`benchmarks.serve_peer`). In rounds, whose order rotates, the same chat sessions
are asked of the product, of the peer under Serve's default router (power of two choices), and of
the peer under Ray's ``PrefixCacheAffinityRouter``, as it is or (``--peer ray_prefix_10``) with the
threshold that keeps load in balance. Scenario ``paced``: twelve replicas and three gateways; the
engines compute nothing but take the time of a 70B model, slowed down so that the machine's cores
are not what is measured; its first round is simulated, too. Scenario ``smollm2``: two replicas that
compute, a core for each.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import yaml
from transformers import AutoTokenizer

from benchmarks.fleet_file import FleetShape, fleets_file
from benchmarks.result import BenchmarkResult, CaseResult
from benchmarks.routing_http_contest import PEERS, Contest
from benchmarks.routing_http_fleet import pin_replicas
from benchmarks.routing_http_scenarios import SCENARIOS, Scenario
from benchmarks.routing_http_simulated import Encode
from benchmarks.routing_http_summary import GOALS, compared, simulated
from benchmarks.serving_server import MeasurementError
from benchmarks.statistics import MIN_PAIRS
from deployments.environment import headwater_home
from deployments.local_environment import free_port
from deployments.local_serve import LocalServe
from deployments.report import State
from engine.checkpoints.store import checkpoint_path

START_TIMEOUT_S = 400.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; 0 if a result was written, 1 if not."""
    options = _parse_options(argv)
    scenarios = [_scaled(SCENARIOS[name], options) for name in options.scenario]
    cases: list[CaseResult] = []
    try:
        for scenario in scenarios:
            cases += _measure(scenario, options)
        BenchmarkResult.of_this_machine(
            name="routing_http",
            config={
                "model": options.model,
                "rounds": options.rounds,
                "scenarios": [_described(scenario) for scenario in scenarios],
            },
            seed=scenarios[0].workload.seed,
            results=cases,
        ).write(options.out)
    except (MeasurementError, OSError) as error:
        print(f"benchmarks.routing_http: {error}", file=sys.stderr)
        return 1
    for case in cases:
        print(f"{case.case:<44}{case.value:>12.3f} {case.unit:<8}{case.peer_value or ''}")
    return 0


def _measure(scenario: Scenario, options: argparse.Namespace) -> list[CaseResult]:
    """Start the fleets, measure, stop them."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    shape = FleetShape(
        options.model,
        scenario.num_replicas,
        scenario.num_gateways,
        scenario.engine,
        tuple(options.peer),
    )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "fleets.yaml"
        file.write_text(yaml.safe_dump(fleets_file(shape, port)), "utf-8")
        with LocalServe(file, health_url=f"{url}/health") as local:
            report = local.wait_until_ready(threading.Event(), timeout_s=START_TIMEOUT_S)
            if report.state is not State.READY:
                raise MeasurementError(f"Serve did not start: {report}")
            if scenario.num_pinned_cores:
                engines = (f"{options.model}:EngineReplica", "peer:PeerEngine")
                pin_replicas(local.pid, engines, scenario.num_pinned_cores)
            contest = Contest(scenario, url, options.model, local.pid, tuple(options.peer))
            rounds = asyncio.run(contest.run(options.rounds))
    cases = compared(scenario.name, rounds)
    if scenario.engine.get("runner") == "paced":
        cases += simulated(scenario, rounds, _encode_with(options.model))
    return cases


def _encode_with(model: str) -> Encode:
    tokenizer: Any = AutoTokenizer.from_pretrained(checkpoint_path(headwater_home(), model))

    def encode(messages: Sequence[Mapping[str, str]]) -> list[int]:
        token_ids: list[int] = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_dict=False
        )
        return token_ids

    return encode


def _scaled(scenario: Scenario, options: argparse.Namespace) -> Scenario:
    """As the command line wants it."""
    return replace(
        scenario,
        num_replicas=options.replicas or scenario.num_replicas,
        num_gateways=options.gateways or scenario.num_gateways,
        rate_per_s=options.rate or scenario.rate_per_s,
        num_requests=options.num_requests or scenario.num_requests,
    )


def _described(scenario: Scenario) -> dict[str, object]:
    return {**asdict(replace(scenario, engine={})), "engine": dict(scenario.engine)}


def _parse_options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.routing_http", description=__doc__)
    add = parser.add_argument
    add("--out", type=Path, required=True, help="result file to write")
    add("--model", default="smollm2-135m-instruct", help="in the model cache")
    add("--scenario", choices=[*SCENARIOS], action="append", help="(default: all)")
    add("--peer", choices=[*PEERS], action="append", help="(default: the two with a goal)")
    add("--rounds", type=int, default=MIN_PAIRS, help="of all contestants")
    add("--replicas", type=int, help="of each fleet, instead of the scenario's")
    add("--gateways", type=int, help="of each fleet, instead of the scenario's")
    add("--rate", type=float, help="requests per second, instead of the scenario's")
    add("--num-requests", type=int, help="of each round, instead of the scenario's")
    options = parser.parse_args(argv)
    options.scenario = options.scenario or [*SCENARIOS]
    options.peer = options.peer or [*GOALS]
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    return options


if __name__ == "__main__":
    sys.exit(main())
