"""`headwater serve configs/quickstart.yaml`, as a newcomer runs it: the real model, end to end."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx
import openai
import psutil
import pytest

from tests.cluster.processes import GATEWAY, engine_of, family_of, replicas, step_loop_of
from tests.cluster.streams import streams
from tests.quickstart import MODEL

REPOSITORY = Path(__file__).resolve().parents[2]
START_TIMEOUT_S = 240.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(START_TIMEOUT_S + 60)]


@dataclass(frozen=True, slots=True)
class Served:
    """A running `headwater serve` and what it printed until it was ready."""

    process: subprocess.Popen[str]
    output: str

    @property
    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    process = subprocess.Popen(
        [
            # As a shell starts a job in the background: it must stop at SIGINT all the same.
            *("sh", "-c", 'trap "" INT; exec "$@"', "sh"),
            *(sys.executable, "-m", "deployments.cli", "serve", "configs/quickstart.yaml"),
        ],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        output = _read_until(process, "stop: Ctrl-C")
        family = family_of(process.pid)
        yield Served(process, output)
        _stops_at_sigint(process, family, output)
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _read_until(process: subprocess.Popen[str], end: str) -> str:
    assert process.stdout is not None
    output = ""
    for line in process.stdout:  # the module's timeout ends a wait that is too long
        output += line
        if end in line:
            return output
    raise AssertionError(f"ended: {output}")


def _stops_at_sigint(
    process: subprocess.Popen[str], family: list[psutil.Process], output: str
) -> None:
    """One Ctrl-C lets open answers finish, ends every process with status 0 and removes the
    folder."""
    # Two connections: one is not enough to be sure that neither gateway cuts its streams.
    open_answers = streams("http://127.0.0.1:8000", MODEL, count=2, num_tokens=150)
    process.send_signal(signal.SIGINT)
    for answer in open_answers:
        answer.wait(60)
        assert answer.error is None
        assert answer.num_tokens > 0, "the stream was cut before its usage"
    assert process.wait(timeout=60) == 0
    _, left = psutil.wait_procs(family, timeout=10)
    assert left == []
    folder = re.search(r"logs in (/\S+?/hw-[^/]+)/", output)
    assert folder is not None, output
    assert not Path(folder[1]).exists()


def _ask(client: openai.OpenAI, question: str) -> str:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": question}],
        temperature=0,
        max_tokens=24,
    )
    return answer.choices[0].message.content or ""


def _bash(command: str) -> subprocess.CompletedProcess[str]:
    """As in a terminal where the environment of the project is activated."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-c", command],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PATH": path},
    )


def test_an_openai_client_gets_the_right_answer(served: Served) -> None:
    assert "Paris" in _ask(served.client, "What is the capital of France?")


def test_a_streamed_answer_is_the_same(served: Served) -> None:
    stream = served.client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "What is the capital of France?"}],
        temperature=0,
        stream=True,
    )
    pieces = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
    assert "".join(pieces) == _ask(served.client, "What is the capital of France?")
    assert len([piece for piece in pieces if piece]) > 1


def test_the_printed_commands_work(served: Served) -> None:
    curl, python = re.findall(
        r"^  (curl .*\\\n.*|\S*python\S* -c .*)$", served.output, re.MULTILINE
    )
    answer = _bash(curl)
    assert "Paris" in answer.stdout, answer
    answer = _bash(python)
    assert "Paris" in answer.stdout, answer


def test_requests_are_shared_by_both_gateways_and_both_engines(served: Served) -> None:
    gateways = replicas(served.process.pid, GATEWAY)
    engines = replicas(served.process.pid, engine_of(MODEL))
    assert (len(gateways), len(engines)) == (2, 2)
    workers = [*gateways, *(step_loop_of(engine) for engine in engines)]
    before = [sum(worker.cpu_times()[:2]) for worker in workers]
    with ThreadPoolExecutor(8) as pool:
        questions = [f"Tell me something about the number {number}." for number in range(16)]
        answers = list(pool.map(lambda question: _ask(served.client, question), questions))
    assert all(answers)
    used_s = [sum(worker.cpu_times()[:2]) - b for worker, b in zip(workers, before, strict=True)]
    # Half of 16 requests costs a gateway milliseconds and an engine a second; a replica that got
    # none of them would have used next to nothing.
    assert min(used_s[:2]) > 0.01, used_s
    assert min(used_s[2:]) > 0.2, used_s


def test_replicas_run_at_the_priority_of_the_command(served: Served) -> None:
    (gateway, _) = replicas(served.process.pid, GATEWAY)
    (engine, _) = replicas(served.process.pid, engine_of(MODEL))
    usual = psutil.Process().nice()
    assert [p.nice() for p in (gateway, engine, step_loop_of(engine))] == [usual] * 3


def test_every_open_socket_is_on_loopback(served: Served) -> None:
    exposed: list[str] = []
    ports: set[int] = set()
    haproxy_ports: set[int] = set()
    for process in family_of(served.process.pid):
        try:
            connections = process.net_connections("inet")
        except psutil.NoSuchProcess:
            continue
        for connection in connections:
            host = connection.laddr.ip.removeprefix("::ffff:")
            ports.add(connection.laddr.port)
            if process.name() == "haproxy" and connection.status == psutil.CONN_LISTEN:
                haproxy_ports.add(connection.laddr.port)
            if not host.startswith("127.") and host != "::1":
                exposed.append(f"{process.name()} {connection.laddr}")
    assert exposed == []
    # The walk saw what it is meant to see: the dashboard; HAProxy's service, statistics, metrics.
    dashboard = re.search(r"dashboard: http://127\.0\.0\.1:(\d+)", served.output)
    assert dashboard is not None
    assert int(dashboard[1]) in ports
    assert 8000 in haproxy_ports
    assert len(haproxy_ports) == 3


def test_clients_cannot_set_serves_timeout(served: Served) -> None:
    answer = served.client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Count to one hundred."}],
        max_tokens=32,
        extra_headers={
            "x-request-timeout-seconds": "0.001",
            "x-request-disconnect-disabled": "?1",
        },
    )
    assert answer.usage is not None
    assert answer.usage.completion_tokens > 0


@pytest.mark.parametrize(
    ("sent", "answered"),
    [([b"mine-1"], "mine-1"), ([b"not \xff plain"], "chatcmpl-"), ([], "chatcmpl-")],
)
def test_every_answer_has_one_request_id(served: Served, sent: list[bytes], answered: str) -> None:
    headers = [(b"x-request-id", value) for value in sent]
    answer = httpx.get("http://127.0.0.1:8000/health", headers=headers)
    assert answer.status_code == 200
    (request_id,) = answer.headers.get_list("x-request-id")
    assert request_id.startswith(answered)


def test_the_channels_secret_is_in_no_log(served: Served) -> None:
    logs = re.search(r"logs in (/\S+)", served.output)
    assert logs is not None
    # Also what goes to no logger: `.out` and `.err` are the workers' standard streams.
    files = [path for path in Path(logs[1]).rglob("*") if path.is_file()]
    texts = [path.read_text("utf-8", "replace") for path in files]
    assert any("listens at" in text for text in texts)  # the replicas' logs are among them
    for text in texts:
        assert "'secret'" not in text
        assert '"secret"' not in text
