"""``python -m engine.weights.node_process``: a node's weights in a process of its own, without Ray.

Says where other nodes find it in one line of JSON, then takes one command a line on its standard
input and answers each with one line, when it is done; several may be under way. Ends at SIGTERM or
with its input: its parent is gone then. For tests and benchmarks.
"""

import argparse
import asyncio
import logging
import secrets
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from cache_tiers.config import WeightsConfig
from cache_tiers.messages import PeerAddress
from cache_tiers.weights.chunk_messages import PeerCounts
from cache_tiers.weights.errors import WeightsError
from cache_tiers.weights.messages import NodeWeightsReport, WeightsOrder, WeightsState
from engine.available_memory import available_memory_bytes
from engine.weights.node_weights import NodeWeights

_SECRET_BYTES = 32
_MAX_LINE_BYTES = 1 << 20


class Started(msgspec.Struct, frozen=True, tag="started"):
    """The first line."""

    address: PeerAddress


class Order(msgspec.Struct, frozen=True, tag="order"):
    """Answered at once by the `WeightsState`."""

    order: WeightsOrder


class Reach(msgspec.Struct, frozen=True, tag="reach"):
    """Answered when it is reached, or can't be."""

    order: WeightsOrder
    timeout_s: float = 600.0


class Lease(msgspec.Struct, frozen=True, tag="lease"):
    """Answered by the report, as the next two are."""

    model: str
    holder: str
    ttl_s: float


class Release(msgspec.Struct, frozen=True, tag="release"):
    model: str
    holder: str


class Report(msgspec.Struct, frozen=True, tag="report"):
    pass


class AskCounts(msgspec.Struct, frozen=True, tag="counts"):
    """Answered by `Counted`."""


class Counted(msgspec.Struct, frozen=True, tag="counted"):
    """Since the start."""

    num_promoted: int
    num_failures: dict[str, int]
    """Promotions that didn't reach their goal, by class of error."""
    num_failed_origins: dict[str, int]
    """By kind of place, whether or not another one had the model."""
    peers: PeerCounts


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The answer to a command that makes no sense."""

    reason: str


Command = Order | Reach | Lease | Release | Report | AskCounts
Answer = WeightsState | NodeWeightsReport | Counted | Refused


async def serve(weights: NodeWeights) -> None:
    """Until SIGTERM, SIGINT or the end of standard input."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    _say(Started(await weights.start()))
    try:
        following = asyncio.create_task(_follow(weights))
        following.add_done_callback(lambda _: ended.set())
        await ended.wait()
        following.cancel()
    finally:
        await weights.close()


async def _follow(weights: NodeWeights) -> None:
    reader = asyncio.StreamReader(limit=_MAX_LINE_BYTES)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    async with asyncio.TaskGroup() as group:
        while line := await reader.readline():
            group.create_task(_answer(weights, line))


async def _answer(weights: NodeWeights, line: bytes) -> None:
    try:
        _say(await _carry_out(weights, msgspec.json.decode(line, type=Command)))
    except (msgspec.DecodeError, WeightsError) as error:
        _say(Refused(str(error)))


async def _carry_out(weights: NodeWeights, command: Command) -> Answer:
    match command:
        case Order(order):
            return weights.order(order)
        case Reach(order, timeout_s):
            return await weights.reach(order, timeout_s)
        case Lease(model, holder, ttl_s):
            weights.lease(model, holder, ttl_s)
        case Release(model, holder):
            weights.release(model, holder)
        case AskCounts():
            counts = weights.counts
            return Counted(
                num_promoted=counts.num_promotions.total(),
                num_failures=dict(counts.num_failures),
                num_failed_origins=dict(counts.num_failed_origins),
                peers=counts.peers,
            )
    return weights.report()


def _say(answer: Started | Answer) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
    sys.stdout.buffer.flush()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="engine.weights.node_process", description=__doc__)
    parser.add_argument("--config", default="{}", help="WeightsConfig as JSON")
    parser.add_argument("--home", type=Path, required=True, help="the store of models")
    parser.add_argument("--folder", type=Path, required=True, help="this node's own")
    parser.add_argument("--host", default="127.0.0.1", help="where other nodes connect")
    parser.add_argument("--secret-file", type=Path, help="that nodes share; absent: a new one")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    secret = options.secret_file.read_bytes() if options.secret_file else None

    async def run() -> None:
        await serve(
            NodeWeights(
                WeightsConfig.model_validate_json(options.config),
                home=options.home,
                folder=options.folder,
                host=options.host,
                secret=secret or secrets.token_bytes(_SECRET_BYTES),
                available_bytes=available_memory_bytes,
            )
        )

    try:
        asyncio.run(run())
    except OSError as error:
        sys.exit(f"the node's weights can't start: {error}")


if __name__ == "__main__":
    main()
