"""The same requests through the real engine, over a runner that only takes time, and through a
simulated one: when each begins and ends, and what was found cached.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.config import EngineConfig, PacedConfig
from engine.engine import Engine
from engine.kv_geometry import KvGeometry, KvGroup
from engine.messages import EngineRequest, SamplingParams, ServiceClass
from engine.paced_runner import PacedRunner
from engine.performance_profile import StepCost
from simulator.performance import LinearModel
from simulator.planned_engine import PlannedEngine

BLOCK_SIZE = 4
PACED = PacedConfig(
    step_base_s=0.01,
    per_decode_s=0.001,
    per_prefill_token_s=0.0005,
    per_context_token_s=0.00001,
    per_attended_token_s=0.000001,
)
MODEL = LinearModel(
    StepCost(
        PACED.step_base_s,
        PACED.per_prefill_token_s,
        PACED.per_decode_s,
        PACED.per_context_token_s,
        PACED.per_attended_token_s,
    )
)


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request; its prompt begins with blocks that others of the same ``stem`` share."""

    at_s: float
    num_prompt_tokens: int
    num_answer_tokens: int
    stem: int = 0
    num_shared_blocks: int = 0
    service_class: ServiceClass = ServiceClass.STANDARD


@dataclass(frozen=True, slots=True)
class Course:
    """How one request went, on the engine's clock."""

    first_s: float
    end_s: float
    num_cached_tokens: int


def make_request(number: int, arrival: Arrival, now_s: float) -> EngineRequest:
    num_blocks = arrival.num_prompt_tokens // BLOCK_SIZE
    num_shared = min(num_blocks, arrival.num_shared_blocks)
    own = bytes([1, number])
    keys = [
        (bytes([0, arrival.stem]) if index < num_shared else own).ljust(15, b"-") + bytes([index])
        for index in range(num_blocks)
    ]
    # Tokens that agree with the keys: the runner notices if blocks are shared that differ.
    shared = [arrival.stem] * (num_shared * BLOCK_SIZE)
    token_ids = shared + [100 + number] * (arrival.num_prompt_tokens - len(shared))
    return EngineRequest(
        f"r{number}",
        token_ids,
        bytes(16),
        keys,
        SamplingParams(arrival.num_answer_tokens, temperature=0.0),
        timeout_s=1e6,
        service_class=arrival.service_class,
        age_s=now_s - arrival.at_s,
    )


def run_engine(
    config: EngineConfig, num_blocks: int, arrivals: Sequence[Arrival]
) -> dict[str, Course]:
    """Through the real one; ``arrivals`` are in order."""
    now_s = 0.0

    def sleep(duration_s: float) -> None:
        nonlocal now_s
        now_s += duration_s

    engine = Engine(
        config,
        geometry=KvGeometry((KvGroup((0,)),), 1, 1, BLOCK_SIZE, 2),
        num_blocks=num_blocks,
        max_model_len=num_blocks * BLOCK_SIZE,
        vocab_size=10_000,
        runner=PacedRunner(
            PACED,
            num_blocks=num_blocks,
            block_size_tokens=BLOCK_SIZE,
            vocab_size=10_000,
            eos_token_ids=[],
            sleep=sleep,
            clock=lambda: now_s,
        ),
        clock=lambda: now_s,
    )
    begun: dict[str, tuple[float, int]] = {}
    courses: dict[str, Course] = {}
    coming = list(enumerate(arrivals))
    while coming or engine.has_work:
        if not engine.has_work:
            now_s = max(now_s, coming[0][1].at_s)
        while coming and coming[0][1].at_s <= now_s:
            engine.add(make_request(*coming.pop(0), now_s))
        for delta in engine.step().deltas:
            assert delta.error is None
            if delta.request_id not in begun:
                assert delta.usage is not None
                begun[delta.request_id] = (now_s, delta.usage.cached_tokens)
            if delta.finish_reason is not None:
                courses[delta.request_id] = Course(
                    begun[delta.request_id][0], now_s, begun[delta.request_id][1]
                )
    return courses


def run_planned(
    config: EngineConfig, num_blocks: int, arrivals: Sequence[Arrival], *, stretches: bool = True
) -> tuple[dict[str, Course], PlannedEngine]:
    """Through the simulated one."""
    engine = PlannedEngine(
        config,
        MODEL,
        num_blocks=num_blocks,
        block_size_tokens=BLOCK_SIZE,
        key_stride=1,
        stretches=stretches,
    )
    begun: dict[str, float] = {}
    courses: dict[str, Course] = {}
    coming = list(enumerate(arrivals))
    now_s = 0.0
    while coming or engine.has_work:
        if not engine.has_work:
            now_s = max(now_s, coming[0][1].at_s)
        while coming and coming[0][1].at_s <= now_s:
            engine.add(make_request(*coming.pop(0), now_s), now_s)
        end_s = engine.begin(now_s)
        if coming and coming[0][1].at_s < end_s:
            end_s = engine.cut(coming[0][1].at_s)
        now_s = end_s
        progress = engine.finish()
        engine.check_integrity()
        for sequence in progress.begun:
            begun[sequence.request.request_id] = now_s
        for sequence in progress.ended:
            request_id = sequence.request.request_id
            courses[request_id] = Course(begun[request_id], now_s, sequence.cached_tokens or 0)
    return courses, engine
