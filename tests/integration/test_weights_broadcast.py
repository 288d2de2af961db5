"""Weights along a chain of processes: in about the time of one, past those that die or stall."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

import pytest

from tests.integration.capped_links import Machine, capped_links

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

ROOT = Path(__file__).parents[2]
MB = 1000**2
LINK_MBIT = 300
"""Little enough that five processes on two cores move as many bytes."""


class Node:
    """One process."""

    def __init__(self, process: "subprocess.Popen[str]", host: str) -> None:
        self.process = process
        self.address = (host, int(self.answer()["port"]))

    @classmethod
    @contextmanager
    def running(
        cls, machine: Machine, sizes_bytes: Sequence[int] = (), **limits: float
    ) -> Iterator[Self]:
        node = {"host": machine.host, "sizes_bytes": list(sizes_bytes), "limits": limits}
        command = [sys.executable, "-m", "tests.integration.weights_node", json.dumps(node)]
        process = subprocess.Popen(
            machine.command(command),
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            yield cls(process, machine.host)
        finally:
            process.kill()
            process.communicate()

    def bring(self, parents: Sequence["Node"]) -> None:
        """Returns at once."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([parent.address for parent in parents]) + "\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """The next one."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the node ended"
        answer: dict[str, Any] = json.loads(line)
        assert answer.get("are_right", True)
        return answer

    def kill(self, number: int) -> None:
        os.kill(self.process.pid, number)


@contextmanager
def chain(
    rates_mbit: Sequence[int], sizes_bytes: Sequence[int], **limits: float
) -> Iterator[list[Node]]:
    """A seed and nodes behind it."""
    with ExitStack() as stack:
        machines = stack.enter_context(capped_links(rates_mbit))
        yield [
            stack.enter_context(Node.running(machine, () if number else sizes_bytes, **limits))
            for number, machine in enumerate(machines)
        ]


def order_all(nodes: Sequence[Node]) -> None:
    """Each gets those before it as parents, nearest first."""
    for number, node in enumerate(nodes[1:], start=1):
        node.bring(nodes[:number][::-1])


def test_four_nodes_load_in_about_the_time_of_one() -> None:
    sizes_bytes = [200 * MB, 100 * MB]
    # By one stream: a hop lags by a chunk for each, which on links of 100 Gbit/s is nothing.
    with chain([LINK_MBIT] * 6, sizes_bytes, num_streams=1) as all_nodes:
        *nodes, alone = all_nodes
        alone.bring(nodes[:1])
        one_s = alone.answer()["time_s"]
        order_all(nodes)
        answers = [node.answer() for node in nodes[1:]]
    four_s = max(answer["time_s"] for answer in answers)
    sys.stdout.write(f"one node {one_s:.2f} s, four nodes {four_s:.2f} s: {four_s / one_s:.2f}\n")
    assert one_s > 0.9 * sum(sizes_bytes) * 8 / LINK_MBIT / 1e6, "the link isn't capped"
    # A chain; by a star it takes 4 times as long. How close to one it comes benchmarks show.
    assert four_s <= 2.2 * one_s


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_node_that_dies_or_stalls_mid_way_is_routed_around(number: int) -> None:
    with chain([LINK_MBIT] * 4, [100 * MB], num_streams=2, silence_s=3.0) as nodes:
        order_all(nodes)
        time.sleep(0.8)
        nodes[1].kill(number)
        answers = [node.answer() for node in nodes[2:]]
    assert sum(answers[0][count] for count in ("num_lost", "num_stalled", "num_slow")) >= 1
    assert [answer["num_chunks"] for answer in answers] == [12, 12], "none is brought twice"


def test_a_slow_parent_is_left_for_a_quicker_one() -> None:
    with chain([LINK_MBIT, LINK_MBIT // 10, LINK_MBIT], [100 * MB], scout_s=1.0) as nodes:
        order_all(nodes)
        answer = nodes[2].answer()
    assert answer["num_slow"] == 1
