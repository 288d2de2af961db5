"""The serving benchmark with servers that it starts: what is measured, and that nothing is left."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from benchmarks.machine import REPOSITORY
from benchmarks.result import read_result
from benchmarks.serving_contestants import OURS, Contestant
from benchmarks.serving_log import PathNames
from benchmarks.serving_options import parse_target
from benchmarks.serving_process import ServerProcess, ServerProcessError
from benchmarks.serving_rounds import measure_start
from benchmarks.serving_server import MeasurementError
from benchmarks.serving_versus import compare_contestants
from benchmarks.serving_versus_options import VersusOptions, parse_versus_options
from deployments.local_environment import free_port

pytestmark = pytest.mark.integration

STAND_IN = Path(__file__).with_name("serving_stand_in.py")


def make_contestant(mode: str = "right", name: str = "stand-in") -> Contestant:
    port = free_port()
    target = parse_target(f"http://127.0.0.1:{port}", model="m", api_key=None, allow_remote=False)
    return Contestant(name, target, (sys.executable, str(STAND_IN), str(port), mode))


def make_options(*arguments: str) -> VersusOptions:
    return parse_versus_options(
        [*("--peer", "vllm-server", "--out", "r.json", "--output-tokens", "5"), *arguments]
    )


def is_gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def is_listening(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def worker_pids(folder: Path) -> list[int]:
    return [int(line) for line in (folder / "pids").read_text().split()]


def test_a_start_gives_a_run_per_concurrency_and_leaves_no_process(tmp_path: Path) -> None:
    contestant = make_contestant()
    options = make_options("--concurrency", "2", "--concurrency", "1", "--requests-per-client", "3")
    measured = measure_start(contestant, 0, options, tmp_path)
    assert list(measured.runs) == [2, 1]
    assert measured.value(2, "output_tokens") == 2 * 3 * 5
    assert measured.value(1, "output_tokens") == 3 * 5
    assert measured.value(1, "ttft_p50") > 0.0
    assert measured.start_s > 0.0
    assert any("POST" in line for line in measured.log_tail)
    assert [is_gone(pid) for pid in worker_pids(tmp_path)] == [True]
    measure_start(contestant, 1, options, tmp_path)  # its port is free again
    assert [is_gone(pid) for pid in worker_pids(tmp_path)] == [True, True]


def test_a_comparison_is_written_with_what_was_started_and_said(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    contestants = [make_contestant(name=OURS), make_contestant(name="vllm-server")]
    arguments = ["--out", str(out), "--rounds", "1", "--requests-per-client", "2"]
    options = make_options(*arguments, "--concurrency", "2")
    names = PathNames({REPOSITORY: "REPOSITORY", Path(sys.executable).parent: "BIN"})
    compare_contestants(contestants, options, tmp_path, names)
    result = read_result(out)
    speed = next(case for case in result.results if case.case.startswith("c2_output_tokens_per_s"))
    assert speed.case == "c2_output_tokens_per_s_vs_vllm-server"
    assert speed.peer_value is not None
    described = result.config["servers"]["vllm-server"]
    assert "REPOSITORY/tests/integration/serving_stand_in.py" in described["command"]
    assert described["tokens_per_s_of_rounds"] == {"c2": [round(speed.peer_value, 1)]}
    assert any("POST" in line for line in described["log_tail"])
    assert str(REPOSITORY) not in out.read_text()


def test_answers_that_are_too_short_are_no_measurement(tmp_path: Path) -> None:
    with pytest.raises(MeasurementError, match="does not heed ignore_eos") as raised:
        measure_start(make_contestant("short"), 0, make_options("--concurrency", "1"), tmp_path)
    assert "POST" in str(raised.value)
    assert [is_gone(pid) for pid in worker_pids(tmp_path)] == [True]


def test_a_server_that_does_not_start_is_shown_with_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(ServerProcessError, match="ended with status 1") as raised:
        measure_start(make_contestant("broken"), 0, make_options(), tmp_path)
    assert "no such model" in str(raised.value)


def test_a_server_that_never_answers_is_given_up(tmp_path: Path) -> None:
    command = (sys.executable, "-c", "import time; print('loading', flush=True); time.sleep(600)")
    process = ServerProcess(command, environment={}, folder=tmp_path, log=tmp_path / "log")
    with process, pytest.raises(ServerProcessError, match="did not answer within 1 s") as raised:
        process.wait_until(lambda: False, 1.0)
    assert "loading" in str(raised.value)


def test_a_server_that_is_there_already_is_not_measured(tmp_path: Path) -> None:
    contestant = make_contestant()
    other = ServerProcess(
        contestant.command, environment={}, folder=tmp_path, log=tmp_path / "other"
    )
    with other:
        other.wait_until(lambda: is_listening(contestant.target.port), 30.0)
        with pytest.raises(MeasurementError, match="answers before stand-in was started"):
            measure_start(contestant, 0, make_options(), tmp_path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_benchmark_leaves_no_server(tmp_path: Path, number: signal.Signals) -> None:
    program = f"""
import signal, sys
from pathlib import Path
sys.path.insert(0, {str(REPOSITORY)!r})
from benchmarks.serving_process import ServerProcess
signal.signal(signal.SIGTERM, signal.default_int_handler)
command = [sys.executable, {str(STAND_IN)!r}, {str(free_port())!r}]
folder = Path({str(tmp_path)!r})
with ServerProcess(command, environment={{}}, folder=folder, log=folder / "log") as process:
    process.wait_until(lambda: False, 600.0)
"""
    benchmark = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.DEVNULL)
    deadline_s = time.monotonic() + 30.0
    while not (tmp_path / "pids").exists() and time.monotonic() < deadline_s:
        time.sleep(0.05)
    time.sleep(0.1)
    servers = psutil.Process(benchmark.pid).children()
    assert servers
    benchmark.send_signal(number)
    assert benchmark.wait(30.0) != 0
    assert all(is_gone(process.pid) for process in servers)
    assert [is_gone(pid) for pid in worker_pids(tmp_path)] == [True]
