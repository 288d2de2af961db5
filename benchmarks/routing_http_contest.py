"""The contestants of `benchmarks.routing_http`, asked the same in turn.

Must not know how the fleets were started, nor what is made of the figures.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace

import msgspec

from benchmarks.chat_workload import ChatWorkload
from benchmarks.fleet_file import PEER_PATH
from benchmarks.load import ClosedLoop, OpenLoop
from benchmarks.result import CaseResult
from benchmarks.routing_http_fleet import busy_shares, read_cpu
from benchmarks.routing_http_scenarios import Scenario
from benchmarks.serving_options import parse_target
from benchmarks.serving_server import Server
from benchmarks.workload import Workload

OURS = "headwater"
PEERS = {
    "power_of_two": "the same engines behind Serve's default router",
    "ray_prefix": "the same engines behind Ray's PrefixCacheAffinityRouter",
    "ray_prefix_10": "the same, imbalanced_threshold 10",
}
RUN_TIMEOUT_S = 600.0
NUM_IDLE_REQUESTS = 12

Rounds = dict[str, list[list[CaseResult]]]
"""The cases of each round, by contestant."""


def warm_up_workload(scenario: Scenario) -> tuple[ChatWorkload, int]:
    """Asked of each contestant before its rounds, and how many requests of it: has the system
    prompts computed where it sends them."""
    chat = replace(scenario.workload, num_turns=1, mean_answer_tokens=2)
    return chat, 8 * scenario.num_replicas


def round_load(scenario: Scenario, number: int) -> OpenLoop:
    return OpenLoop(
        scenario.rate_per_s,
        scenario.num_requests,
        RUN_TIMEOUT_S,
        number,
        session_len=scenario.workload.session_len,
        think_s=scenario.think_s,
    )


@dataclass(frozen=True, slots=True)
class Contest:
    """One scenario against running fleets."""

    scenario: Scenario
    url: str
    model: str
    serve_pid: int
    peers: tuple[str, ...]

    async def run(self, num_rounds: int) -> Rounds:
        """Who comes first in a round rotates."""
        servers = {OURS: self._server(self.url, self.model)}
        servers |= {name: self._server(self.url + PEER_PATH, name) for name in self.peers}
        names = list(servers)
        rounds: Rounds = {name: [] for name in names}
        try:
            idle = {name: await self._warm_up(server, name) for name, server in servers.items()}
            for number in range(num_rounds):
                first = number % len(names)
                for name in names[first:] + names[:first]:
                    cases = await self._round(servers[name], name, number)
                    rounds[name].append([*cases, idle[name]])
        finally:
            for server in servers.values():
                server.close()
        return rounds

    def _server(self, base: str, model: str) -> Server:
        return Server(parse_target(base, model=model, api_key=None, allow_remote=False))

    async def _warm_up(self, server: Server, name: str) -> CaseResult:
        """Then the TTFT of a short prompt with nothing else to do: what HTTP, gateway and transport
        take."""
        chat, num_requests = warm_up_workload(self.scenario)
        await server.warm_up(
            replace(chat, mark=name),
            num_requests,
            RUN_TIMEOUT_S,
            concurrency=2 * self.scenario.num_replicas,
        )
        load = ClosedLoop(1, NUM_IDLE_REQUESTS, RUN_TIMEOUT_S)
        short = Workload(prompt_words=17, output_tokens=2, seed=0, ignore_eos=True)
        values = {case.case: case for case in await server.run(load, short, run=name)}
        return msgspec.structs.replace(values["ttft_p50"], case="idle_ttft_p50")

    async def _round(self, server: Server, name: str, number: int) -> list[CaseResult]:
        scenario = self.scenario
        load = round_load(scenario, number)
        before = read_cpu(self.serve_pid)
        cases = await server.run(load, replace(scenario.workload, mark=name), run=f"{number}")
        fleet, machine = busy_shares(before, read_cpu(self.serve_pid))
        values = {case.case: case.value for case in cases}
        print(
            f"{scenario.name} round {number + 1}, {name}: TTFT {values['ttft_mean']:.0f} ms, "
            f"hits {values['hit_rate']:.3f}, {values['requests_per_s']:.1f} req/s, "
            f"{values['errors']:.0f} errors, cpu {fleet:.2f} of {machine:.2f}",
            file=sys.stderr,
        )
        return [
            *cases,
            CaseResult(case="cpu_share", value=fleet, unit="1"),
            CaseResult(case="machine_cpu_share", value=machine, unit="1"),
        ]
