"""The command line: what it means, and what it refuses with one line and exit code 2."""

from __future__ import annotations

import pytest

from benchmarks.chat_workload import ChatWorkload
from benchmarks.load import ClosedLoop, OpenLoop
from benchmarks.serving_options import parse_options
from benchmarks.workload import Workload

BASE = ["--model", "m", "--out", "r.json"]
LOCAL = ["--url", "http://127.0.0.1:8000", *BASE]


def test_defaults_are_seventeen_words_in_and_sixty_four_tokens_out() -> None:
    options = parse_options([*LOCAL, "--concurrency", "16"])
    assert options.load == ClosedLoop(16, 100, 600.0)
    assert isinstance(options.workload, Workload)
    assert (options.workload.prompt_words, options.workload.output_tokens) == (17, 64)
    assert options.peer is None


def test_a_rate_makes_an_open_loop() -> None:
    options = parse_options([*LOCAL, "--rate", "2.5", "--num-requests", "9", "--seed", "4"])
    assert options.load == OpenLoop(2.5, 9, 600.0, seed=4)


def test_chat_sessions_shape_workload_and_load() -> None:
    chat = ["--workload", "chat", "--scale", "0.5", "--turns", "6", "--think-s", "0.5"]
    options = parse_options([*LOCAL, *chat, "--answer-tokens", "40", "--concurrency", "4"])
    assert options.load == ClosedLoop(4, 100, 600.0, session_len=6, think_s=0.5)
    assert isinstance(options.workload, ChatWorkload)
    assert options.workload.system_words == 1000
    assert options.workload.mean_answer_tokens == 40
    assert options.describe()["workload"] == "chat"


@pytest.mark.parametrize(
    ("url", "host", "port", "path"),
    [
        ("http://127.0.0.1:8000", "127.0.0.1", 8000, "/v1/chat/completions"),
        ("http://localhost:8000/v1/", "localhost", 8000, "/v1/chat/completions"),
        ("http://[::1]:9/llm/v1", "::1", 9, "/llm/v1/chat/completions"),
        ("http://127.8.8.8", "127.8.8.8", 80, "/v1/chat/completions"),
    ],
)
def test_urls_with_and_without_v1(url: str, host: str, port: int, path: str) -> None:
    target = parse_options(["--url", url, *BASE, "--rate", "1"]).target
    assert (target.host, target.port, target.path) == (host, port, path)


def test_keys_go_to_their_own_server_only_and_never_into_the_result() -> None:
    peer = ["--compare-url", "http://127.0.0.1:9000", "--compare-name", "vllm"]
    options = parse_options([*LOCAL, *peer, "--rate", "1", "--api-key", "sk-secret"])
    assert options.target.api_key == "sk-secret"
    assert options.peer is not None
    assert options.peer.api_key is None
    assert options.peer.model == "m"
    assert options.peer_name == "vllm"
    assert "sk-secret" not in str(options.describe())
    assert "sk-secret" not in repr(options)


def test_a_remote_server_needs_permission() -> None:
    remote = ["--url", "http://10.1.2.3:8000", *BASE, "--rate", "1", "--allow-remote"]
    assert parse_options(remote).target.host == "10.1.2.3"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*LOCAL], "--rate --concurrency is required"),
        ([*LOCAL, "--rate", "1", "--scale", "2"], "--scale has no meaning with --workload fixed"),
        (
            [*LOCAL, "--rate", "1", "--workload", "chat", "--prompt-words", "5"],
            "--prompt-words has no meaning with --workload chat",
        ),
        ([*LOCAL, "--rate", "1", "--workload", "chat", "--scale", "0"], "scale must lie above 0"),
        ([*LOCAL, "--rate", "1", "--workload", "chat", "--turns", "0"], "num_turns must be at"),
        ([*LOCAL, "--rate", "1", "--workload", "chat", "--think-s", "nan"], "--think-s can't be"),
        ([*LOCAL, "--rate", "1", "--concurrency", "1"], "not allowed with"),
        ([*LOCAL, "--rate", "nan"], "--rate must be a number above 0"),
        ([*LOCAL, "--rate", "0"], "--rate must be a number above 0"),
        ([*LOCAL, "--concurrency", "0"], "--concurrency must lie between"),
        ([*LOCAL, "--rate", "1", "--num-requests", "0"], "--num-requests must lie between"),
        ([*LOCAL, "--rate", "1", "--timeout-s", "-1"], "--timeout-s must be"),
        ([*LOCAL, "--rate", "1", "--pairs", "4"], "--pairs must lie between 5"),
        ([*LOCAL, "--rate", "1", "--shared-prefix-words", "18"], "shared_prefix_words"),
        ([*LOCAL, "--rate", "1", "--compare-name", "x"], "need --compare-url"),
        ([*LOCAL, "--rate", "1", "--api-key", "a\r\nb"], "printable ASCII"),
        ([*LOCAL, "--rate", "1", "--unknown"], "unrecognized arguments"),
        (["--url", "http://10.1.2.3", *BASE, "--rate", "1"], "--allow-remote"),
        (["--url", "http://127.0.0.1.evil.example", *BASE, "--rate", "1"], "--allow-remote"),
        (["--url", "https://127.0.0.1", *BASE, "--rate", "1"], "is not a URL"),
        (["--url", "127.0.0.1:8000", *BASE, "--rate", "1"], "is not a URL"),
        (["--url", "http://127.0.0.1:99999", *BASE, "--rate", "1"], "Port out of range"),
        (["--url", "http://u:p@127.0.0.1", *BASE, "--rate", "1"], "no user"),
        ([*LOCAL, "--rate", "1", "--out", "/"], "is a folder"),
        ([*LOCAL, "--rate", "1", "--compare-url", "http://10.1.2.3"], "--allow-remote"),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_two(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        parse_options(arguments)
    assert stopped.value.code == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.count("\n") == 1
