"""One node's weights in a process of its own, for tests: serves what it has, brings what it lacks.

On its command line a JSON object: ``host``, ``sizes_bytes`` of what it has from the beginning,
``limits``. It says a line with its port; for each line with parents it then says one when it has
all, or why not.
"""

import asyncio
import json
import sys
import time
from dataclasses import asdict
from typing import Any

from cache_tiers.messages import PeerAddress
from cache_tiers.weights.chunk_messages import ChunkLimits
from cache_tiers.weights.chunk_server import ChunkServer
from cache_tiers.weights.errors import WeightsError
from tests.integration.weights_peers import SECRET, Shelf, sizes


def say(**what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


async def be_a_node(host: str, sizes_bytes: list[int], limits: dict[str, Any]) -> None:
    """Until its standard input ends."""
    shelf = Shelf.whole(sizes(*sizes_bytes)) if sizes_bytes else Shelf(is_coming=True)
    server = ChunkServer(shelf.lend, host, SECRET, limits=ChunkLimits(**limits))
    await server.start()
    say(port=server.address.port)
    while line := await asyncio.to_thread(sys.stdin.readline):
        parents = [PeerAddress(host, port, SECRET) for host, port in json.loads(line)]
        begin_s = time.monotonic()
        try:
            await shelf.bring(parents, ChunkLimits(**limits))
        except WeightsError as error:
            say(failure=str(error))
        else:
            took_s = time.monotonic() - begin_s
            say(time_s=took_s, are_right=shelf.are_right(), **asdict(shelf.counts))
    await server.close()


if __name__ == "__main__":
    asyncio.run(be_a_node(**json.loads(sys.argv[1])))
