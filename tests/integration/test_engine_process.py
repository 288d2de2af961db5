"""The step loop's process: how it starts, how its front notices its end, and what it leaves."""

import asyncio
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from engine.config import EngineSpec, PacedConfig
from engine.errors import EngineDeadError, EngineStartError
from tests.integration.paced_front import (
    FOREVER,
    PACED,
    SECRET,
    gateway_at,
    running,
    write_paced_checkpoint,
)
from wire.endpoint import Endpoint

pytestmark = pytest.mark.integration

FRONT_PROGRAM = """
import asyncio, sys
from engine.config import EngineSpec
from engine.front import EngineFront

async def main():
    front = EngineFront(
        EngineSpec.model_validate_json(sys.argv[1]),
        engine_id="tiny/1",
        secret=bytes.fromhex(sys.argv[2]),
        host="127.0.0.1",
        unix_dir=None,
    )
    endpoint = await front.start()
    print(front.rank_pid, endpoint.port, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_paced_checkpoint(folder)
    return folder


def ends_within(pid: int, timeout_s: float) -> bool:
    """Whether the process, which is not our child, runs no more."""
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True  # whoever inherited it takes its time to bury it
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.01)
    return False


async def test_a_killed_step_loop_ends_every_stream_and_fails_the_health_check(
    checkpoint: Path,
) -> None:
    async with running(checkpoint) as (front, endpoint), gateway_at(endpoint) as gateway:
        await gateway.submit("r", max_tokens=FOREVER)
        await gateway.started("r")
        front.check_health()
        os.kill(front.rank_pid, signal.SIGKILL)
        assert await gateway.reason_of_end() == "the peer closed the connection"
        with pytest.raises(EngineDeadError, match="was killed: too little memory"):
            front.check_health()


async def test_a_stopped_step_loop_fails_the_health_check(checkpoint: Path) -> None:
    async with running(checkpoint, max_silence_s=1.5) as (front, _):
        await asyncio.sleep(2)
        front.check_health()  # idle is not silent
        os.kill(front.rank_pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(2)
            with pytest.raises(EngineDeadError, match="stuck for"):
                front.check_health()
        finally:
            os.kill(front.rank_pid, signal.SIGCONT)


async def test_a_bad_spec_is_one_clear_line(checkpoint: Path, tmp_path: Path) -> None:
    too_long = PACED.model_copy(update={"max_model_len": 50_000})
    with pytest.raises(EngineStartError, match=r"tiny: max_model_len is 50000, but .* 20000"):
        async with running(checkpoint, config=too_long):
            pass
    with pytest.raises(EngineStartError, match="tiny: ") as missing:
        async with running(tmp_path):
            pass
    assert "\n" not in str(missing.value)


async def test_a_model_that_does_not_get_ready_in_time_is_one_clear_line(checkpoint: Path) -> None:
    config = PACED.model_copy(update={"start_timeout_s": 0.05})
    with pytest.raises(EngineStartError, match=r"tiny: not ready after 0\.05 s; raise"):
        async with running(checkpoint, config=config):
            pass


async def test_a_killed_front_takes_its_step_loop_along_even_in_the_middle_of_a_step(
    checkpoint: Path,
) -> None:
    """The front runs in a process of its own here; a request then keeps its step loop asleep."""
    config = PACED.model_copy(update={"paced": PacedConfig(step_base_s=1)})
    spec = EngineSpec(model="tiny", checkpoint=checkpoint, config=config)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", FRONT_PROGRAM, spec.model_dump_json(), SECRET.hex()),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        rank_pid, port = map(int, (await process.stdout.readline()).split())
        async with gateway_at(Endpoint("127.0.0.1", port)) as gateway:
            await gateway.submit("r", max_tokens=FOREVER)
            await gateway.started("r")
            process.kill()
            await process.wait()
            assert await asyncio.to_thread(ends_within, rank_pid, 0.5)  # a step takes 1 s
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_nothing_is_left_behind(checkpoint: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="hw-") as folder:  # short: socket paths are limited
        async with (
            running(checkpoint, Path(folder)) as (front, endpoint),
            gateway_at(endpoint),
        ):
            pid = front.rank_pid
            assert psutil.pid_exists(pid)
        assert not psutil.pid_exists(pid)
        assert os.listdir(folder) == []
        await front.close()  # again does no harm


@pytest.mark.slow
async def test_an_idle_engine_uses_less_than_two_percent_of_a_core(checkpoint: Path) -> None:
    async with running(checkpoint) as (front, endpoint), gateway_at(endpoint):
        process = psutil.Process(front.rank_pid)
        before = process.cpu_times()
        await asyncio.sleep(10)
        after = process.cpu_times()
        used_s = after.user + after.system - before.user - before.system
        assert used_s / 10 < 0.02
