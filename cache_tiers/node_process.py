"""``python -m cache_tiers.node_process``: a node's cache in a process of its own, without Ray.

Says where it is found in one line of JSON, and ends at SIGTERM or, if its standard input is a pipe,
with that: its parent is gone then. For tests, benchmarks and engines that run by themselves. Must
not know Ray.
"""

import argparse
import asyncio
import logging
import os
import secrets
import signal
import stat
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from cache_tiers.arena import ArenaError
from cache_tiers.config import NodeCacheConfig
from cache_tiers.messages import PeerAddress
from cache_tiers.node_cache import NodeCache
from cache_tiers.tier import TierError

_SECRET_BYTES = 32


class NodeStarted(msgspec.Struct, frozen=True):
    """The line on standard output."""

    socket_path: str
    peer: PeerAddress


async def serve(config: NodeCacheConfig, socket_path: Path, host: str) -> None:
    """Until SIGTERM, SIGINT or the end of a pipe on standard input."""
    cache = NodeCache(
        config, socket_path=socket_path, host=host, secret=secrets.token_bytes(_SECRET_BYTES)
    )
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    address = await cache.start()
    try:
        started = msgspec.json.encode(NodeStarted(str(socket_path), address))
        sys.stdout.buffer.write(started + b"\n")
        sys.stdout.buffer.flush()
        await _wait(ended)
    finally:
        await cache.close()


async def _wait(ended: asyncio.Event) -> None:
    if not stat.S_ISFIFO(os.fstat(sys.stdin.fileno()).st_mode):
        await ended.wait()
        return
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    tasks = [asyncio.create_task(ended.wait()), asyncio.create_task(reader.read())]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    transport.close()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="cache_tiers.node_process", description=__doc__)
    parser.add_argument("--config", default="{}", help="NodeCacheConfig as JSON")
    parser.add_argument("--socket", type=Path, required=True, help="where engines connect")
    parser.add_argument("--host", default="127.0.0.1", help="where other nodes connect")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    config = NodeCacheConfig.model_validate_json(options.config)
    try:
        asyncio.run(serve(config, options.socket, options.host))
    except (ArenaError, TierError, OSError) as error:
        sys.exit(f"the node cache can't start: {error}")


if __name__ == "__main__":
    main()
