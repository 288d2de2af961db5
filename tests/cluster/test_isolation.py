"""What one fault or one change touches, and what it must leave alone. Paced engines."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.cluster.local import Local, Model, running
from tests.cluster.processes import (
    GATEWAY,
    engine_of,
    listening_ports,
    ranks_of,
    replicas,
    wait_until,
)
from tests.cluster.streams import Stream, streams

ALPHA = Model("alpha", num_replicas=2, num_ranks=3)
BETA = Model("beta", max_num_seqs=2)
STEPS_PER_S = 1 / ALPHA.step_s

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    with running([ALPHA, BETA], tmp_path_factory.mktemp("serve")) as local:
        yield local


def _pids(local: Local, name: str) -> list[int]:
    return [process.pid for process in replicas(local.pid, name)]


def _url_of(gateway: psutil.Process) -> str:
    """The port it opens for HAProxy."""
    (port,) = [port for port in listening_ports(gateway) if 30000 <= port <= 31000]
    return f"http://127.0.0.1:{port}"


def test_serves_rest_interface_wants_a_token_and_shows_no_secret(local: Local) -> None:
    url = f"{local.serve.dashboard_url}/api/serve/applications/"
    assert httpx.get(url).status_code == 401
    token = Path("~/.ray/auth_token").expanduser().read_text("ascii").strip()
    answer = httpx.get(url, headers={"authorization": f"Bearer {token}"})
    assert answer.status_code == 200
    assert "EngineReplica" in answer.text
    assert "secret" not in answer.text


@pytest.mark.parametrize(
    ("rank", "sent"), [(0, signal.SIGKILL), (2, signal.SIGSTOP)], ids=["killed", "stopped"]
)
def test_a_lost_rank_costs_no_answer_and_its_replica_is_replaced(
    local: Local, rank: int, sent: signal.Signals
) -> None:
    num_tokens = int(10 * STEPS_PER_S)
    running_streams = streams(local.url, "alpha", count=8, num_tokens=num_tokens)
    victim, survivor = replicas(local.pid, engine_of("alpha"))
    family = [victim, *ranks_of(victim)]
    assert len(family) == 1 + ALPHA.num_ranks
    ranks_of(victim)[rank].send_signal(sent)
    _, left = psutil.wait_procs(family, timeout=5.0)
    assert left == [], "the replica ends by itself, and all its ranks with it"
    for stream in running_streams:
        stream.wait(60)
    assert [stream.error for stream in running_streams] == [None] * len(running_streams)
    assert [stream.num_tokens for stream in running_streams] == [num_tokens] * len(running_streams)

    def is_replaced() -> bool:
        pids = _pids(local, engine_of("alpha"))
        return len(pids) == 2 and victim.pid not in pids and survivor.pid in pids

    wait_until(is_replaced, timeout_s=40, what="the replica whose rank was lost is replaced")
    wait_until(
        lambda: len(ranks_of(replicas(local.pid, engine_of("alpha"))[-1])) == ALPHA.num_ranks,
        timeout_s=40,
        what="the new replica has all its ranks",
    )


def test_a_dead_gateway_frees_what_it_ran_and_nothing_else(local: Local) -> None:
    victim, other = replicas(local.pid, GATEWAY)
    mine, its = _url_of(other), _url_of(victim)
    num_tokens = int(10 * STEPS_PER_S)
    kept = Stream(mine, "beta", num_tokens=num_tokens)
    kept.wait_for_first_token(20)
    # The engine runs two at once; the victim's, with more behind them, leave no room for ours.
    lost = [Stream(its, "beta", num_tokens=3 * num_tokens) for _ in range(4)]
    wait_until(
        lambda: any(stream.first_token_s is not None for stream in lost),
        timeout_s=20,
        what="one of the victim's runs",  # which one the engine takes first is a race
    )
    time.sleep(0.5)
    waiting = Stream(mine, "beta", num_tokens=5)
    time.sleep(1.0)
    assert waiting.first_token_s is None
    killed_s = time.monotonic()
    victim.kill()
    assert waiting.wait_for_first_token(10) - killed_s < 2.0
    for stream in [kept, waiting, *lost]:
        stream.wait(60)
    assert (kept.error, kept.num_tokens) == (None, num_tokens)
    assert (waiting.error, waiting.num_tokens) == (None, 5)
    assert all(stream.error is not None for stream in lost)
    wait_until(
        lambda: len(_pids(local, GATEWAY)) == 2, timeout_s=40, what="the gateway is replaced"
    )


def test_scaling_down_drains(local: Local) -> None:
    num_tokens = int(6 * STEPS_PER_S)
    before = streams(local.url, "alpha", count=8, num_tokens=num_tokens)
    local.deploy([ALPHA, BETA], alpha=1)
    during: list[Stream] = []
    while len(_pids(local, engine_of("alpha"))) > 1:
        during.append(Stream(local.url, "alpha", num_tokens=10, prompt=f"{len(during)} is what?"))
        assert len(during) < 200, "the replica does not leave"
        time.sleep(0.2)
    for stream in before + during:
        stream.wait(60)
    assert [stream.error for stream in before + during] == [None] * len(before + during)
    assert {stream.num_tokens for stream in before} == {num_tokens}
    assert {stream.num_tokens for stream in during} == {10}
    assert len(during) > 5  # the drain took its time, and requests went on meanwhile


def test_a_change_to_one_model_leaves_the_other_and_its_stream_alone(local: Local) -> None:
    alpha, beta = set(_pids(local, engine_of("alpha"))), _pids(local, engine_of("beta"))
    gateways = _pids(local, GATEWAY)
    num_tokens = int(12 * STEPS_PER_S)
    stream = Stream(local.url, "beta", num_tokens=num_tokens)
    stream.wait_for_first_token(20)
    local.deploy([Model("alpha", max_num_seqs=32), BETA])

    def is_replaced() -> bool:
        now = set(_pids(local, engine_of("alpha")))
        return len(now) == 1 and not now & alpha

    wait_until(is_replaced, timeout_s=60, what="alpha is replaced")
    stream.wait(60)
    assert (stream.error, stream.num_tokens) == (None, num_tokens)
    assert _pids(local, engine_of("beta")) == beta
    assert _pids(local, GATEWAY) == gateways
