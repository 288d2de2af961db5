"""What the channel of a gateway and an engine carries: ``python -m benchmarks.wire --out FILE``.

Three processes share one core: a gateway's ``ChannelClient`` with a sink for each stream, a real
``EngineFront``, and its rank, where the real step loop runs over a script instead of a model. So a
delta's cost includes making, sorting and encoding it in the step loop, the pipe, the front with its
credits, records, cache mirror and metrics, the Unix socket, decoding, and the call of its sink. Not
included: planning and computing, the prefix index, text, HTTP. Event loops are uvloop's, as under
Ray. Requests are as long as the chat workload's in the mean (``wire_gateway``).

Saturated, the script steps as soon as all but a few of the last steps have been delivered, and
streams follow one another in a closed loop. Under a given load it steps at a fixed rate, and the
time of a submit runs from the gateway's call to the step loop. The limit is msgspec's decoding of
the same frames alone, on the same core. What others do on this core lengthens the times of submits:
it is reported, and should be next to nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import secrets
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import uvloop

from app.channel import connect_engine
from app.membership import ConnectError, EngineAddress
from benchmarks.result import BenchmarkResult, CaseResult
from benchmarks.statistics import percentile
from benchmarks.wire_core import CoreReading, CoreUse
from benchmarks.wire_count import DeliveryCount
from benchmarks.wire_engine import ENGINE_ID, Script, scripted_engine
from benchmarks.wire_gateway import Gateway
from benchmarks.wire_script import ScriptedEngine
from engine.config import EngineConfig
from engine.messages import EngineMessage, ModelCard, StepFrame
from wire.endpoint import Endpoint
from wire.errors import WireError

NUM_STREAMS = (64, 256)
LOADED_STREAMS = 256
GOAL_DELTAS_PER_S = 150_000
LOAD_DELTAS_PER_S = 160_000
"""Offered: above the goal also while some streams wait for their credit."""
MAX_SUBMIT_MS = 1.0
"""The goal for the 99th percentile under that load."""
_LIMIT_FRAMES = 50


class MeasurementError(Exception):
    """The channel did not carry what it was given."""


@dataclass(frozen=True, slots=True)
class Duration:
    """Seconds."""

    warm_up_s: float
    measured_s: float


@dataclass(frozen=True, slots=True)
class Delivery:
    """What reached the sinks of one run."""

    deltas_per_s: float
    submit_times_ms: list[float]
    core: CoreUse


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; 0 if a result was written, 1 if not."""
    options = _parse_options(argv)
    duration = Duration(options.warm_up_s, options.measured_s)
    try:
        core = pin_to_one_core()
        cases = measure_all(duration, seed=options.seed)
        BenchmarkResult.of_this_machine(
            name="wire",
            config={
                "core": core,
                "warm_up_s": duration.warm_up_s,
                "measured_s": duration.measured_s,
                "load_deltas_per_s": LOAD_DELTAS_PER_S,
            },
            seed=options.seed,
            results=cases,
        ).write(options.out)
    except (ConnectError, MeasurementError, OSError, RuntimeError, WireError) as error:
        print(f"benchmarks.wire: {error}", file=sys.stderr)
        return 1
    for case in cases:
        limit = "" if case.limit is None else f"{case.limit:>14.2f}  {case.of_limit:.3f}"
        print(f"{case.case:<36}{case.value:>14.2f} {case.unit:<10}{limit}")
    return 0


def pin_to_one_core() -> int:
    """This process, and all that it starts from now on; returns which core."""
    core = max(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})
    return core


def measure_all(duration: Duration, *, seed: int) -> list[CaseResult]:
    """All cases, one after the other."""
    cases: list[CaseResult] = []
    saturated: dict[int, float] = {}
    for num_streams in NUM_STREAMS:
        delivery = measure(num_streams, 0.0, duration, seed=seed)
        saturated[num_streams] = delivery.deltas_per_s
        cases.append(
            CaseResult(
                case=f"saturated_{num_streams}_streams",
                value=delivery.deltas_per_s,
                unit="deltas/s",
                limit=measure_decoding(num_streams, seed=seed),
            )
        )
    goal_load = f"load_{GOAL_DELTAS_PER_S // 1000}k"
    loads = {goal_load: LOAD_DELTAS_PER_S, "half_load": saturated[LOADED_STREAMS] / 2}
    for name, load in loads.items():
        delivery = measure(LOADED_STREAMS, LOADED_STREAMS / load, duration, seed=seed)
        cases += _summarize(name, delivery, MAX_SUBMIT_MS if name == goal_load else None)
    return cases


def measure(num_streams: int, step_period_s: float, duration: Duration, *, seed: int) -> Delivery:
    """One run with processes of its own. Raises ``MeasurementError`` if a stream was lost."""
    with (
        tempfile.TemporaryDirectory(prefix="hw-") as folder,
        scripted_engine(
            Script(folder, secret := secrets.token_bytes(32), num_streams, step_period_s)
        ) as endpoint,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        gateway = Gateway(num_streams, seed=seed, delivered=DeliveryCount(Path(folder)))
        gc.collect()
        gc.freeze()  # as a gateway does
        try:
            return runner.run(_deliver(endpoint, secret, gateway, duration))
        finally:
            gc.unfreeze()


def measure_decoding(num_streams: int, *, seed: int) -> float:
    """Deltas per second that msgspec decodes, and nothing else is done with them."""
    gateway = Gateway(num_streams, seed=seed)
    engine = ScriptedEngine(EngineConfig(max_num_seqs=num_streams))
    for _ in range(num_streams):
        engine.add(gateway.make_request())
    outputs = [engine.step() for _ in range(_LIMIT_FRAMES + 1)][1:]
    frames = [
        msgspec.msgpack.encode(StepFrame(output.deltas, output.load, output.events))
        for output in outputs
    ]
    decode = msgspec.msgpack.Decoder(EngineMessage).decode
    times_s: list[float] = []
    for _ in range(20):
        started_s = time.perf_counter()
        for frame in frames:
            decode(frame)
        times_s.append(time.perf_counter() - started_s)
    return len(frames) * num_streams / percentile(times_s, 50.0)


async def _deliver(
    endpoint: Endpoint, secret: bytes, gateway: Gateway, duration: Duration
) -> Delivery:
    address = EngineAddress(ENGINE_ID, endpoint, secret)
    client = await connect_engine(address, gateway, _keep)
    try:
        gateway.start(client)
        await asyncio.sleep(duration.warm_up_s)
        gateway.tally.submit_times_us.clear()
        num_before, before = gateway.tally.num_deltas, CoreReading.of_pinned()
        await asyncio.sleep(duration.measured_s)
        num_deltas, after = gateway.tally.num_deltas - num_before, CoreReading.of_pinned()
        if gateway.failure is not None:
            raise MeasurementError(f"a stream was lost: {gateway.failure}")
        times_ms = [time_us / 1e3 for time_us in gateway.tally.submit_times_us]
        deltas_per_s = num_deltas / (after.at_s - before.at_s)
        return Delivery(deltas_per_s, times_ms, after.use_since(before))
    finally:
        await client.close()


async def _keep(card: ModelCard) -> ModelCard:
    return card


def _summarize(name: str, delivery: Delivery, max_submit_ms: float | None) -> list[CaseResult]:
    times_ms = delivery.submit_times_ms
    return [
        CaseResult(case=f"{name}_delivered", value=delivery.deltas_per_s, unit="deltas/s"),
        CaseResult(case=f"{name}_core_share", value=delivery.core.own, unit="cores"),
        CaseResult(case=f"{name}_core_share_of_others", value=delivery.core.others, unit="cores"),
        CaseResult(case=f"{name}_submit_p50", value=percentile(times_ms, 50.0), unit="ms"),
        CaseResult(
            case=f"{name}_submit_p99",
            value=percentile(times_ms, 99.0),
            unit="ms",
            limit=max_submit_ms,
        ),
    ]


def _parse_options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.wire", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="result file to write")
    parser.add_argument("--warm-up-s", type=float, default=1.0)
    parser.add_argument("--measured-s", type=float, default=8.0)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
