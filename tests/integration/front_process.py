"""A front in a process of its own, so that a test can stop it as a whole."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from engine.config import EngineSpec
from tests.integration.paced_front import PACED, SECRET
from wire.endpoint import Endpoint

_SOURCE_ROOT = Path(__file__).resolve().parents[2]
_PROGRAM = """
import asyncio, sys
from engine.config import EngineSpec
from engine.front import EngineFront

async def main():
    front = EngineFront(
        EngineSpec.model_validate_json(sys.argv[1]),
        engine_id=sys.argv[2],
        secret=bytes.fromhex(sys.argv[3]),
        host="127.0.0.1",
        unix_dir=None,
    )
    endpoint = await front.start()
    print(endpoint.port, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@dataclass(frozen=True, slots=True)
class FrontProcess:
    """A paced engine that listens."""

    process: asyncio.subprocess.Process
    engine_id: str
    endpoint: Endpoint

    def stop_all(self) -> None:
        """Front and ranks are stopped (SIGSTOP), as on a node that hangs."""
        for process in self._all():
            process.suspend()

    def _all(self) -> list[psutil.Process]:
        front = psutil.Process(self.process.pid)
        return [front, *front.children(recursive=True)]


@asynccontextmanager
async def front_process(
    checkpoint: Path, engine_id: str, forge: Path | None = None
) -> AsyncIterator[FrontProcess]:
    spec = EngineSpec(model="tiny", checkpoint=checkpoint, config=PACED, forge_socket=forge)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _PROGRAM, spec.model_dump_json(), engine_id, SECRET.hex()),
        cwd=_SOURCE_ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(30):
            port = int(await process.stdout.readline())
        yield FrontProcess(process, engine_id, Endpoint("127.0.0.1", port))
    finally:
        if process.returncode is None:
            process.kill()  # its ranks end with it, stopped ones, too
        await process.wait()
