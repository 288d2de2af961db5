"""The tunnel as a process, and Serve's REST API through it; small stand-ins in place of the AWS CLI
and of Serve.
"""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deployments.aws.cluster_access import tunnel
from deployments.aws.errors import ServeAway, ServeRefused, TunnelBroken
from deployments.aws.serve_api import ServeApi
from deployments.local_environment import free_port
from tests.integration.fake_serve import TOKEN, FakeServe, fake_serve

pytestmark = pytest.mark.integration

FORWARD = """
import pathlib, socket, sys, threading
local, remote, gone = int(sys.argv[1]), int(sys.argv[2]), pathlib.Path(sys.argv[3])
print("Starting session", flush=True)

def copy(source, sink):
    while data := source.recv(65536):
        sink.sendall(data)
    sink.shutdown(socket.SHUT_WR)

server = socket.create_server(("127.0.0.1", local))
server.settimeout(0.05)
while not gone.exists():
    try:
        here, _ = server.accept()
    except TimeoutError:
        continue
    here.setblocking(True)
    there = socket.create_connection(("127.0.0.1", remote))
    for pair in ((here, there), (there, here)):
        threading.Thread(target=copy, args=pair, daemon=True).start()
print("SessionClosed: the instance has gone", flush=True)
"""


@pytest.fixture
def serve() -> Iterator[FakeServe]:
    with fake_serve() as fake:
        yield fake


def command(port: int, serve: FakeServe, gone: Path) -> list[str]:
    remote = serve.address.rpartition(":")[2]
    return [sys.executable, "-c", FORWARD, str(port), remote, str(gone)]


def test_serve_is_reached_through_the_tunnel_which_ends_with_the_block(
    serve: FakeServe, tmp_path: Path
) -> None:
    port = free_port()
    with tunnel(command(port, serve, tmp_path / "gone"), local_port=port) as way:
        api = ServeApi(way.address, token=TOKEN, why_ended=way.why_ended)
        api.put({"applications": [{"name": "alpha"}]})
        assert api.state().status_of("alpha") == "RUNNING"
        assert way.why_ended() is None
    with pytest.raises(ServeAway, match="can't be reached"):
        ServeApi(way.address, token=TOKEN).state()


def test_a_tunnel_that_dies_is_told_by_its_last_words(serve: FakeServe, tmp_path: Path) -> None:
    port = free_port()
    with tunnel(command(port, serve, tmp_path / "gone"), local_port=port) as way:
        api = ServeApi(way.address, token=TOKEN, why_ended=way.why_ended)
        api.state()
        (tmp_path / "gone").touch()
        deadline_s = time.monotonic() + 10
        while way.why_ended() is None and time.monotonic() < deadline_s:
            time.sleep(0.05)
        with pytest.raises(TunnelBroken, match=r"has ended .*the instance has gone"):
            api.state()


def test_a_tunnel_that_does_not_come_is_told_by_its_last_words() -> None:
    script = "import sys; sys.exit('TargetNotConnected: i-1 is not connected.')"
    with (
        pytest.raises(TunnelBroken, match="TargetNotConnected: i-1 is not connected"),
        tunnel([sys.executable, "-c", script], local_port=free_port()),
    ):
        pytest.fail("it is open")


def test_a_tunnel_that_hangs_is_given_up_and_ended(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    script = f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    with (
        pytest.raises(TunnelBroken, match="isn't open after 2 s"),
        tunnel([sys.executable, "-c", script], local_port=free_port(), timeout_s=2),
    ):
        pytest.fail("it is open")
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_a_program_that_is_not_there_is_named() -> None:
    with (
        pytest.raises(TunnelBroken, match=r"cannot run /nonexistent/aws \(No such file"),
        tunnel(["/nonexistent/aws"], local_port=free_port()),
    ):
        pytest.fail("it is open")


@pytest.mark.parametrize("token", [None, "another"])
def test_a_wrong_token_is_told_in_serves_own_words(serve: FakeServe, token: str | None) -> None:
    with pytest.raises(ServeAway, match="doesn't take the cluster's token"):
        ServeApi(serve.address, token=token).state()


def test_what_serve_refuses_is_told_by_its_last_line(serve: FakeServe) -> None:
    serve.refusal = "Traceback\n  File x\nray.exceptions.RayTaskError: two applications share /"
    with pytest.raises(ServeRefused, match=r"^two applications share /$"):
        ServeApi(serve.address, token=TOKEN).put({"applications": []})


@pytest.mark.parametrize("address", ["127.0.0.1:8265", "ftp://host", "http://", "http://h:port"])
def test_an_address_that_is_none_is_told(address: str) -> None:
    with pytest.raises(ServeAway):
        ServeApi(address, token=TOKEN).state()


def test_something_else_than_serve_is_told(serve: FakeServe) -> None:
    with pytest.raises(ServeAway, match="answered with status 404"):
        ServeApi(f"{serve.address}/elsewhere", token=TOKEN).state()
