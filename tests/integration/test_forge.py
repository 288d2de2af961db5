"""Ranks that a forge forks: like spawned ones in all but how they begin."""

import asyncio
import json
import logging
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

from cache_tiers.rung import Rung
from cache_tiers.weights.messages import Stage
from engine.config import EngineConfig, EngineSpec, PacedConfig, RankSpec
from engine.errors import EngineStartError
from engine.forge.client import ForgeUnavailable, fork_rank
from engine.forge.code import SOURCE_ROOT, this_code
from engine.forge.messages import Fork, FromForge, Hello, Refusal, Welcome
from engine.front import EngineFront
from engine.rank_messages import Ready
from engine.rank_process import RankProcess
from tests.integration.forges import RunningForge, running_forge, runs, wait_until
from tests.integration.front_process import front_process
from tests.integration.paced_front import FOREVER, SECRET, write_paced_checkpoint
from tests.integration.rank_groups import MAX_LOSS_S, answer, reason_of_loss, running, submit
from tests.quickstart import MODEL, quickstart_checkpoint

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(sys.platform != "linux", reason="a forge needs Linux"),
]

NUM_REQUESTS = 4
HELLO = b"in place of a right one, which is known when the forge runs"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_paced_checkpoint(folder)
    return folder


@pytest.fixture(scope="module")
def shared_forge() -> Iterator[RunningForge]:
    with running_forge() as forge:
        yield forge


@pytest.fixture
def forge(shared_forge: RunningForge) -> Iterator[RunningForge]:
    """Must be as it was before each test."""
    yield shared_forge
    wait_until(lambda: not shared_forge.rank_pids, MAX_LOSS_S)


def spec_of(checkpoint: Path, forge: Path | None, size: int = 1) -> EngineSpec:
    config = EngineConfig(
        runner="paced",
        tensor_parallel_size=size,
        max_num_seqs=8,
        paced=PacedConfig(step_base_s=0.002),
    )
    return EngineSpec(model="tiny", checkpoint=checkpoint, config=config, forge_socket=forge)


def is_over(pid: int) -> bool:
    """Of a rank whose forge is gone: who inherits it may not ask how it ended."""
    return not runs(pid)


async def answers_of(spec: EngineSpec, pids: Callable[[], list[int]]) -> dict[str, list[int]]:
    """``pids``: where the ranks must be found."""
    async with running(spec) as group:
        assert set(group.pids) <= set(pids())
        for number in range(NUM_REQUESTS):
            submit(group, f"r{number}", max_tokens=10 + number)
        return await answer(group, NUM_REQUESTS)


@pytest.mark.parametrize("size", [1, 3])
async def test_forged_ranks_give_the_tokens_of_spawned_ones(forge: RunningForge, size: int) -> None:
    config = EngineConfig(tensor_parallel_size=size, max_num_seqs=4)
    spec = EngineSpec(model=MODEL, checkpoint=quickstart_checkpoint().path, config=config)
    spawned = await answers_of(spec, lambda: [child.pid for child in psutil.Process().children()])
    forged = spec.model_copy(update={"forge_socket": forge.socket_path})
    assert await answers_of(forged, lambda: forge.rank_pids) == spawned
    assert sorted(map(len, spawned.values())) == [10, 11, 12, 13]


async def test_a_forged_rank_has_nothing_of_the_forge(
    forge: RunningForge, checkpoint: Path
) -> None:
    spec = spec_of(checkpoint, forge.socket_path)
    ours = {os.readlink(f"/proc/self/fd/{standard}") for standard in (1, 2)}
    async with running(spec) as first, running(spec) as second:
        for pid in (*first.pids, *second.pids):
            process = psutil.Process(pid)
            assert os.getsid(pid) == pid
            assert process.cwd() == str(SOURCE_ROOT)
            assert process.name() == "headwater-rank"
            folder = f"/proc/{pid}/fd"
            opened = [os.readlink(f"{folder}/{number}") for number in os.listdir(folder)]
            assert sum(name.startswith("socket:") for name in opened) == 1  # to the front
            others = {name for name in opened if not name.startswith(("socket:", "anon_inode:"))}
            assert others - ours - {"/dev/null"} == set()
    assert forge.process.poll() is None


def test_a_forked_process_takes_the_environment_and_the_streams_of_its_front(
    tmp_path: Path,
) -> None:
    """``--help`` ends a rank at once, so that the process can be looked at."""
    program = """
import json, logging, os, sys
from engine.forge.forge import RankOrder
from engine.forge.forked import run_rank
from engine.forge.messages import Fork

logging.basicConfig(level=logging.INFO)
order = RankOrder(Fork(["--help"], {b"ONLY": b"\\xff"}), [*map(int, sys.argv[1:])])
if os.fork() == 0:
    try:
        run_rank(order)
    except SystemExit:
        found = {k.decode(): repr(v) for k, v in os.environb.items()}, os.getcwd()
        print(json.dumps([*found, len(logging.root.handlers)]), flush=True)
        os.write(2, b"to the front")
    os._exit(0)
os.wait()
"""
    with (tmp_path / "out").open("wb") as out, (tmp_path / "error").open("wb") as error:
        ours, theirs = socket.socketpair()
        descriptors = [out.fileno(), error.fileno(), theirs.fileno()]
        with ours, theirs:
            subprocess.run(
                [sys.executable, "-c", program, *map(str, descriptors)],
                pass_fds=descriptors,
                cwd=SOURCE_ROOT,
                check=True,
                timeout=60,
            )
    found = (tmp_path / "out").read_text().splitlines()[-1]
    assert json.loads(found) == [{"ONLY": repr(b"\xff")}, str(SOURCE_ROOT), 0]
    assert (tmp_path / "error").read_text() == "to the front"


@pytest.mark.parametrize("victim", [0, 2])
async def test_a_killed_rank_ends_the_group_and_is_named(
    forge: RunningForge, checkpoint: Path, victim: int
) -> None:
    async with running(spec_of(checkpoint, forge.socket_path, size=4)) as group:
        assert sorted(forge.rank_pids) == sorted(group.pids)
        submit(group, "r", FOREVER)
        await group.receive()
        os.kill(group.pids[victim], signal.SIGKILL)
        reason, loss_s = await reason_of_loss(group)
        assert reason.startswith(f"the process of rank {victim} was killed")
        assert loss_s < 1


async def test_a_stopped_rank_ends_the_group(forge: RunningForge, checkpoint: Path) -> None:
    async with running(spec_of(checkpoint, forge.socket_path, size=4)) as group:
        os.kill(group.pids[1], signal.SIGSTOP)
        reason, loss_s = await reason_of_loss(group)
        assert reason == "the process of rank 1 was stopped (SIGSTOP)"
        assert loss_s < MAX_LOSS_S


async def test_a_rank_that_cannot_start_says_why(forge: RunningForge, checkpoint: Path) -> None:
    spec = spec_of(checkpoint, forge.socket_path, size=4)
    too_long = spec.config.model_copy(update={"max_model_len": 50_000})
    with pytest.raises(EngineStartError, match=r"^tiny: rank \d: max_model_len is 50000, but "):
        async with running(spec.model_copy(update={"config": too_long})):
            pass


@pytest.mark.parametrize("is_stopped", [False, True])
async def test_ranks_end_with_their_front(checkpoint: Path, *, is_stopped: bool) -> None:
    with running_forge() as forge:  # of the code that the other process finds at this time
        async with front_process(checkpoint, "e", forge=forge.socket_path) as front:
            [rank] = forge.rank_pids
            if is_stopped:
                os.kill(rank, signal.SIGSTOP)
            front.process.kill()
            await front.process.wait()
            await asyncio.to_thread(wait_until, lambda: not runs(rank), 1.0)
        assert forge.process.poll() is None


async def test_ranks_outlive_the_forge_and_their_end_is_seen(checkpoint: Path) -> None:
    with running_forge() as forge:
        spec = spec_of(checkpoint, forge.socket_path, size=2)
        async with running(spec, is_gone=is_over) as group:
            forge.process.kill()
            forge.process.wait()
            submit(group, "r", max_tokens=50)
            assert len((await answer(group, 1))["r"]) == 50
            os.kill(group.pids[1], signal.SIGKILL)
            reason, loss_s = await reason_of_loss(group)
            assert "ended; how is not known, since the node's forge ended before" in reason
            assert loss_s < MAX_LOSS_S


async def test_a_forge_ends_with_its_parent_and_its_ranks_do_not(checkpoint: Path) -> None:
    with running_forge() as forge:
        spec = spec_of(checkpoint, forge.socket_path)
        async with running(spec, is_gone=is_over) as group:
            assert forge.process.stdin is not None
            forge.process.stdin.close()
            assert forge.process.wait(10) == 0
            assert not forge.socket_path.exists()
            submit(group, "r", max_tokens=5)
            assert len((await answer(group, 1))["r"]) == 5


async def test_a_forge_that_hangs_costs_a_second_and_no_rank(
    checkpoint: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running_forge() as forge, caplog.at_level(logging.WARNING):
        forge.process.send_signal(signal.SIGSTOP)
        started_s = time.monotonic()
        async with running(spec_of(checkpoint, forge.socket_path, size=4)) as group:
            assert time.monotonic() - started_s < 6  # one wait for all
            parents = {psutil.Process(pid).ppid() for pid in group.pids}
            assert parents == {os.getpid()}
            forge.process.send_signal(signal.SIGCONT)
            wait_until(lambda: _answers(forge))
            assert forge.rank_pids == []
    assert "the process of rank 0 starts an interpreter of its own: the forge at " in caplog.text


def _answers(forge: RunningForge) -> bool:
    return isinstance(_ask(forge, Hello("any")), Refusal)


async def test_without_a_forge_an_interpreter_starts(
    checkpoint: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rank = RankProcess(RankSpec())
    try:
        with caplog.at_level(logging.WARNING):
            rank.spawn(forge=tmp_path / "forge.sock")
        assert not rank.is_forged
        assert isinstance(await rank.load(spec_of(checkpoint, None)), Ready)
    finally:
        await rank.stop(grace_s=1)
    assert "gives no answer ([Errno 2] No such file or directory)" in caplog.text


def test_another_version_of_the_code_is_refused(forge: RunningForge) -> None:
    refusal = Refusal("the forge runs another version of the code")
    assert _ask(forge, Hello("another")) == refusal
    assert _ask(forge, Hello(this_code())) == Welcome()


@pytest.mark.parametrize(
    "packets",
    [
        [b"\xc1 no message"],
        [msgspec.msgpack.encode(Fork([], {}))],  # without a word before
        [HELLO, b""],
        [HELLO, bytes(200_000)],
    ],
    ids=["no-message", "no-hello", "empty", "large"],
)
def test_who_makes_no_sense_is_cut_off_alone(forge: RunningForge, packets: list[bytes]) -> None:
    with forge.connect() as connection:
        hello = msgspec.msgpack.encode(Hello(this_code()))
        for packet in packets:
            connection.send(hello if packet is HELLO else packet)
        answers = [*iter(lambda: connection.recv(1000), b"")]
    assert [msgspec.msgpack.decode(text, type=FromForge) for text in answers] in ([], [Welcome()])
    assert _answers(forge)
    assert forge.rank_pids == []


def test_a_rank_without_a_pipe_is_refused(forge: RunningForge) -> None:
    with pytest.raises(ForgeUnavailable, match="descriptors are missing"):
        fork_rank(forge.socket_path, [], [])


@pytest.mark.parametrize("num_free", [0, 1])
def test_a_forge_short_of_descriptors_forks_a_rank_or_nothing(num_free: int) -> None:
    """One is enough for the forge, which needs it twice; its child must not need another one."""
    with running_forge() as forge:
        ours, theirs = socket.socketpair()
        with ours, theirs, forge.connect() as connection:
            connection.send(msgspec.msgpack.encode(Hello(this_code())))
            connection.recv(1000)
            fork = Fork(["--rank", "0", "--spawned-s", "0"], dict(os.environb))
            descriptors = [1, 2, theirs.fileno()]
            most = len(os.listdir(f"/proc/{forge.process.pid}/fd")) + len(descriptors) + num_free
            resource.prlimit(forge.process.pid, resource.RLIMIT_NOFILE, (most, most))
            socket.send_fds(connection, [msgspec.msgpack.encode(fork)], descriptors)
            assert bool(connection.recv(1000)) == bool(num_free)
            ranks = psutil.Process(forge.process.pid).children()
            assert len(ranks) == num_free
            # No second forge.
            wait_until(lambda: all(rank.name() == "headwater-rank" for rank in ranks), 5.0)
        wait_until(lambda: not forge.rank_pids, 2.0)
        assert forge.process.poll() is None


def test_a_front_that_leaves_at_once_leaves_no_rank(forge: RunningForge) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, forge.connect() as connection:
        connection.send(msgspec.msgpack.encode(Hello(this_code())))
        connection.recv(1000)
        fork = Fork(["--rank", "0", "--spawned-s", "0"], dict(os.environb))
        socket.send_fds(connection, [msgspec.msgpack.encode(fork)], [1, 2, theirs.fileno()])
    wait_until(lambda: not forge.rank_pids, 2.0)
    assert _answers(forge)


@pytest.mark.parametrize("is_forged", [False, True])
async def test_a_front_tells_where_a_start_began_and_what_it_took(
    forge: RunningForge, checkpoint: Path, *, is_forged: bool
) -> None:
    spec = spec_of(checkpoint, forge.socket_path if is_forged else None).model_copy(
        update={"started_from": Rung.STAGED}
    )
    front = EngineFront(spec, engine_id="e", secret=SECRET, host="127.0.0.1", unix_dir=None)
    try:
        await front.start(asked_s=time.monotonic() - 5, before=[Stage("replica", 4.5)])
        stages = {stage.name: stage.time_s for stage in front.start_stages}
        assert [*stages] == [
            *(
                "replica",
                "process",
                "imports",
                "checkpoint",
                "weights",
                "warm_up",
                "node_cache",
                "model_card",
            )
        ]
        assert all(time_s >= 0 for time_s in stages.values())
        page = front.render_metrics().decode()
    finally:
        await front.close()
    [total_s] = re.findall(r'headwater:start_seconds{.*rung="staged"} (\S+)', page)
    assert 5 < float(total_s) < 15
    assert f'stage="process"}} {stages["process"]}' in page


def _ask(forge: RunningForge, hello: Hello) -> object:
    with forge.connect() as connection:
        connection.send(msgspec.msgpack.encode(hello))
        return msgspec.msgpack.decode(connection.recv(1000), type=FromForge)
