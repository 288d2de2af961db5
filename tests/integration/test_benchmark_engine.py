"""The engine benchmark in short, on the real model and with a peer process that is a fake."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.engine import main
from benchmarks.engine_cases import decode_case
from benchmarks.engine_timing import Speed
from benchmarks.peer_process import PeerFailure, PeerProcess
from benchmarks.result import read_result
from deployments.environment import child_environment
from tests.quickstart import quickstart_checkpoint

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

# A thread that polls for work, as vLLM's idle worker does.
FAKE_PEER = """
import sys, threading
from benchmarks.engine_timing import Speed
from benchmarks.peer_protocol import claimed_stdout, serve

def poll():
    while True:
        pass

def measure(case):
    print("measuring", case.name)
    if case.name == "refused":
        raise ValueError("not this one")
    if case.name == "fatal":
        sys.exit(3)
    return Speed(case.num_seqs * 2.0, 0.5)

with claimed_stdout() as answers:
    print("loading")
    threading.Thread(target=poll, daemon=True).start()
    serve(sys.stdin, answers, measure, ("msgspec",))
"""


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[PeerProcess]:
    command = [sys.executable, "-c", FAKE_PEER]
    with PeerProcess("fake", command, child_environment({}), tmp_path / "log") as process:
        yield process


def test_a_run_without_peers_gives_speeds_steps_and_limits(tmp_path: Path) -> None:
    checkpoint = quickstart_checkpoint()
    out = tmp_path / "engine.json"
    arguments = ["--out", str(out), "--runs", "1", "--threads", "1", "--jitter-steps", "20"]
    arguments += ["--checkpoint", str(checkpoint.path)]
    for case in ("decode_bs4", "prefill_512", "python_per_step", "step_jitter"):
        arguments += ["--case", case]
    assert main(arguments) == 0
    result = read_result(out)
    assert result.config["is_valid"] is True
    rows = {row.case: row for row in result.results}
    assert rows["decode_bs4"].value > 1
    assert rows["prefill_512"].value > rows["decode_bs4"].value
    assert rows["decode_bs4"].of_limit is not None
    assert rows["decode_bs4_step"].value == pytest.approx(4000 / rows["decode_bs4"].value, rel=0.5)
    for num_seqs in (16, 64):
        assert rows[f"python_per_step_bs{num_seqs}"].value > 0
    assert rows["step_jitter_p50"].value <= rows["step_jitter_p99_9"].value
    assert rows["step_jitter"].value >= 1


def test_a_missing_model_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "engine.json"
    assert main(["--out", str(out), "--checkpoint", str(tmp_path / "nothing")]) == 1
    assert capsys.readouterr().err.startswith("benchmarks.engine: ")
    assert not out.exists()


def test_a_peer_measures_and_what_it_prints_goes_to_its_log(peer: PeerProcess) -> None:
    assert list(peer.versions) == ["msgspec"]
    assert peer.measure(decode_case("d", 3)) == Speed(6.0, 0.5)
    assert peer.log_tail() == ["loading", "measuring d"]


def test_a_peer_that_polls_uses_no_core_between_its_turns(peer: PeerProcess) -> None:
    peer.measure(decode_case("d", 1))
    time.sleep(0.05)  # a signal is on its way
    before_s = peer.cpu_time_s()
    assert before_s > 0
    time.sleep(0.5)
    assert peer.cpu_time_s() - before_s < 0.05


def test_a_peer_that_fails_says_why_and_goes_on(peer: PeerProcess) -> None:
    with pytest.raises(PeerFailure, match="refused: ValueError: not this one"):
        peer.measure(decode_case("refused", 1))
    assert peer.measure(decode_case("d", 1)) == Speed(2.0, 0.5)


def test_a_peer_that_dies_is_told_from_one_that_is_slow(peer: PeerProcess) -> None:
    with pytest.raises(PeerFailure, match=r"its process ended; the end of its log .*\nloading"):
        peer.measure(decode_case("fatal", 1))


def test_a_peer_that_does_not_start_shows_its_log(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "raise SystemExit('no such model')"]
    with pytest.raises(PeerFailure, match="no such model"):
        PeerProcess("fake", command, child_environment({}), tmp_path / "log")


def test_a_peer_that_says_something_else_is_refused_and_ended(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "print('hello'); input()"]
    with pytest.raises(PeerFailure, match="expected JSON, got b'hello'"):
        PeerProcess("fake", command, child_environment({}), tmp_path / "log")
