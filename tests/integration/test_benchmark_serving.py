"""The serving benchmark against a tiny server on loopback whose pace is known."""

from __future__ import annotations

import asyncio
import json
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from benchmarks.result import BenchmarkResult, read_result
from benchmarks.serving import main

pytestmark = pytest.mark.integration


@dataclass
class PacedServer:
    """Streams `num_tokens` chunks, one each `token_s`, after `first_token_s`."""

    num_tokens: int = 5
    first_token_s: float = 0.05
    token_s: float = 0.02
    api_key: str | None = None
    cut_request: int | None = None  # the number of the one whose connection is cut mid-stream
    requests: list[dict[str, Any]] = field(default_factory=list)
    num_connections: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        try:
            while head := await self._read_head(reader):
                length = int(head["content-length"])
                self.requests.append(json.loads(await reader.readexactly(length)))
                if self.api_key and head.get("authorization") != f"Bearer {self.api_key}":
                    body = b'{"error": {"message": "no such key"}}'
                    writer.write(
                        b"HTTP/1.1 401 Unauthorized\r\nContent-Length: %d\r\n\r\n" % len(body)
                    )
                    writer.write(body)
                else:
                    await self._stream(writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _read_head(self, reader: asyncio.StreamReader) -> dict[str, str]:
        lines = []
        while (line := (await reader.readline()).decode().strip()) != "":
            lines.append(line.split(": ", 1))
        return {name.lower(): value for name, value in lines[1:]} if lines[1:] else {}

    async def _stream(self, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n")
        writer.write(b"Transfer-Encoding: chunked\r\n\r\n")
        write_event(writer, {"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        await asyncio.sleep(self.first_token_s - self.token_s)
        for _ in range(self.num_tokens):
            await asyncio.sleep(self.token_s)
            if len(self.requests) == self.cut_request:
                writer.transport.abort()
                return
            write_event(writer, {"choices": [{"delta": {"content": "word "}}]})
        usage = {"prompt_tokens": 17, "completion_tokens": self.num_tokens}
        write_event(writer, {"choices": [], "usage": usage})
        write_chunk(writer, b"data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")


def write_event(writer: asyncio.StreamWriter, payload: object) -> None:
    write_chunk(writer, b"data: " + json.dumps(payload).encode() + b"\n\n")


def write_chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(b"%x\r\n%b\r\n" % (len(data), data))


async def run_against(servers: list[PacedServer], out: Path, *arguments: str) -> int:
    """Run the benchmark's main in a thread against `servers`, the second as the peer."""
    listeners = [await asyncio.start_server(each.serve, "127.0.0.1", 0) for each in servers]
    urls = [f"http://127.0.0.1:{each.sockets[0].getsockname()[1]}" for each in listeners]
    argv = ["--url", urls[0], "--model", "m", "--out", str(out), *arguments]
    if len(urls) > 1:
        argv += ["--compare-url", urls[1], "--compare-name", "peer"]
    try:
        return await asyncio.to_thread(main, argv)
    finally:
        for listener in listeners:
            listener.close()
            await listener.wait_closed()


def values_of(result: BenchmarkResult) -> dict[str, float]:
    return {case.case: case.value for case in result.results}


async def test_closed_loop_measures_the_servers_pace(tmp_path: Path) -> None:
    server = PacedServer()
    out = tmp_path / "result.json"
    arguments = ["--concurrency", "2", "--num-requests", "6", "--warmup-requests", "2"]
    assert await run_against([server], out, *arguments, "--ignore-eos", "--output-tokens", "5") == 0
    values = values_of(read_result(out))
    assert 50.0 <= values["ttft_p50"] < 500.0
    assert 20.0 <= values["gap_p50"] < 200.0
    assert 20.0 <= values["tpot_p50"] < 200.0
    assert values["e2e_p50"] >= 50.0 + 4 * 20.0
    assert (values["succeeded"], values["errors"], values["unfinished"]) == (6, 0, 0)
    assert values["gaps"] == 6 * 4
    assert values["output_tokens"] == 6 * 5
    assert 0.0 < values["client_cpu_s"] < values["duration_s"]
    assert len(server.requests) == 8
    assert len({request["messages"][0]["content"] for request in server.requests}) == 8
    assert all(request["min_tokens"] == 5 for request in server.requests)
    assert server.num_connections == 2  # kept alive, not one for each request


async def test_open_loop_counts_from_the_intended_send(tmp_path: Path) -> None:
    server = PacedServer(first_token_s=0.3, num_tokens=2)
    out = tmp_path / "result.json"
    arguments = ["--rate", "100", "--num-requests", "10", "--warmup-requests", "0"]
    assert await run_against([server], out, *arguments) == 0
    result = read_result(out)
    values = values_of(result)
    assert server.num_connections > 5  # arrivals did not wait for answers
    assert values["ttft_p50"] >= 300.0
    assert values["duration_s"] < 10 * 0.3
    assert result.config["rate_per_s"] == 100.0


async def test_a_comparison_gives_ratios_of_interleaved_pairs(tmp_path: Path) -> None:
    fast = PacedServer(num_tokens=3, first_token_s=0.03, token_s=0.01)
    slow = PacedServer(num_tokens=3, first_token_s=0.09, token_s=0.03)
    out = tmp_path / "result.json"
    arguments = ["--concurrency", "1", "--num-requests", "2", "--warmup-requests", "1"]
    assert await run_against([fast, slow], out, *arguments) == 0
    cases = {case.case: case for case in read_result(out).results}
    ttft = cases["ttft_p50"]
    assert ttft.peer == "peer"
    assert ttft.ratio is not None
    assert ttft.ratio.num_pairs == 5
    assert 0.1 < ttft.ratio.median < 0.9
    throughput = cases["output_tokens_per_s"].ratio
    assert throughput is not None
    assert 1.1 < throughput.median < 10.0


async def test_the_api_key_is_sent_and_stays_out_of_the_file(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    server = PacedServer(api_key="sk-secret", num_tokens=1)
    arguments = ["--concurrency", "1", "--num-requests", "1"]
    assert await run_against([server], out, *arguments, "--api-key", "sk-secret") == 0
    assert "sk-secret" not in out.read_text()


async def test_a_refused_key_is_one_line_exit_one_and_no_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "result.json"
    server = PacedServer(api_key="sk-secret")
    assert await run_against([server], out, "--concurrency", "1", "--num-requests", "1") == 1
    printed = capsys.readouterr().err
    assert "HTTP 401: no such key" in printed
    assert printed.count("\n") == 1
    assert not out.exists()


async def test_a_connection_cut_mid_stream_is_one_error_and_the_others_go_on(
    tmp_path: Path,
) -> None:
    out = tmp_path / "result.json"
    server = PacedServer(cut_request=2)
    arguments = ["--concurrency", "1", "--num-requests", "4", "--warmup-requests", "0"]
    assert await run_against([server], out, *arguments) == 0
    values = values_of(read_result(out))
    assert (values["succeeded"], values["errors"], values["unfinished"]) == (3, 1, 0)
    assert values["output_tokens"] == 3 * 5


async def test_a_run_that_outlasts_its_timeout_counts_what_it_left(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    server = PacedServer(num_tokens=1, first_token_s=0.1, token_s=0.1)
    arguments = ["--concurrency", "1", "--num-requests", "1000", "--warmup-requests", "0"]
    assert await run_against([server], out, *arguments, "--timeout-s", "0.5") == 0
    values = values_of(read_result(out))
    assert 1 <= values["succeeded"] <= 5
    assert values["unfinished"] == 1000 - values["succeeded"]


def test_a_server_that_is_not_there_is_one_line_and_exit_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        argv = ["--url", url, "--model", "m", "--out", str(tmp_path / "r.json"), "--rate", "1"]
        assert main(argv) == 1
    printed = capsys.readouterr().err
    assert f"cannot reach {url}" in printed
    assert printed.count("\n") == 1
