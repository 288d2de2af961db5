"""What is started, with which file, command and environment; and who goes first."""

from __future__ import annotations

from pathlib import Path

import yaml

from benchmarks.result import CaseResult
from benchmarks.serving_contestants import (
    OURS,
    headwater,
    ray_serve_llm,
    running,
    serve_file_for,
    vllm_server,
)
from benchmarks.serving_log import PathNames, last_lines
from benchmarks.serving_rounds import Round, measure_rounds
from benchmarks.serving_versus_options import QUICKSTART
from benchmarks.vllm_environment import vllm_environment

PYTHON = Path("/peers/vllm-cpu/bin/python")
MODEL_FOLDER = Path("/home/me/models/m")


def test_the_served_file_differs_in_port_threads_and_replicas_only() -> None:
    text = serve_file_for(QUICKSTART, 1234, num_threads=2, num_replicas=1)
    ours, original = yaml.safe_load(text), yaml.safe_load(QUICKSTART.read_text("utf-8"))
    assert ours["http_options"] == {"host": "127.0.0.1", "port": 1234}
    gateway, model = ours["applications"]
    assert gateway == original["applications"][0]
    assert (model["args"]["engine"]["num_threads"], model["args"]["num_replicas"]) == (2, 1)
    as_it_is = yaml.safe_load(serve_file_for(QUICKSTART, 1234, num_threads=None, num_replicas=None))
    assert as_it_is["applications"] == original["applications"]


def test_peers_get_the_same_model_dtype_length_and_loopback_port() -> None:
    environment = vllm_environment([0, 1], kv_cache_gib=1)
    vllm = vllm_server(PYTHON, MODEL_FOLDER, "m", 7000, environment)
    ray = ray_serve_llm(PYTHON, MODEL_FOLDER, "m", 7001, environment)
    assert vllm.command[:3] == ("/peers/vllm-cpu/bin/vllm", "serve", str(MODEL_FOLDER))
    assert ray.command[:2] == (str(PYTHON), "-P")
    for contestant, port in ((vllm, "7000"), (ray, "7001")):
        options = dict(zip(contestant.command, contestant.command[1:], strict=False))
        assert (options["--dtype"], options["--max-model-len"]) == ("bfloat16", "2048")
        assert options["--port"] == port
        assert contestant.target.host == "127.0.0.1"
        assert contestant.environment["VLLM_CPU_OMP_THREADS_BIND"] == "0-1"


def test_a_description_names_no_folder_of_this_machine() -> None:
    names = PathNames({Path("/home/me"): "~", Path("/home/me/peers"): "PEER_HOME"})
    python = Path("/home/me/peers/vllm-cpu/bin/python")
    described = vllm_server(python, MODEL_FOLDER, "m", 7000, {"A": "/home/me/x"}).describe(names)
    assert described["command"].startswith("PEER_HOME/vllm-cpu/bin/vllm serve ~/models/m --host")
    assert described["environment"] == {"A": "~/x"}


def test_ours_that_runs_already_has_no_command() -> None:
    assert running("http://127.0.0.1:8000", "m").command == ()
    assert headwater(Path("serve.yaml"), "m", 7000).command[-2:] == ("serve", "serve.yaml")


def test_the_end_of_a_log_is_without_colours_and_empty_lines(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"first\n\x1b[36m(pid=1)\x1b[0m second\n\n" + b"x" * 500 + b"\n")
    lines = last_lines(log, 2)
    assert lines[0] == "(pid=1) second"
    assert set(lines[1]) == {"x"}
    assert len(lines[1]) == 240
    assert last_lines(tmp_path / "absent", 2) == []


def test_another_server_begins_each_round() -> None:
    names = [OURS, "a", "b"]
    contestants = [vllm_server(PYTHON, MODEL_FOLDER, name, 7000, {}) for name in names]
    order: list[tuple[int, str]] = []

    def measure(contestant: object, number: int) -> Round:
        position = next(i for i, each in enumerate(contestants) if each is contestant)
        order.append((number, names[position]))
        speed = CaseResult(case="output_tokens_per_s", value=1.0, unit="tok/s")
        return Round(0.0, {1: [speed]}, ())

    measure_rounds(contestants, 3, measure)
    assert [name for _, name in order] == [OURS, "a", "b", "a", "b", OURS, "b", OURS, "a"]
    assert [number for number, _ in order] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
