"""Places of the front's ledger, with a real step loop and engine at the other end of the pipe."""

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from cache_tiers.block_image import ImageLayout
from cache_tiers.keys import BlockKey, block_keys
from engine.config import EngineConfig, PacedConfig
from engine.credits import CreditLedger
from engine.engine import Engine
from engine.kv_geometry import KvGeometry, KvGroup
from engine.messages import Abort, EngineRequest, LoadView, SamplingParams, ServiceClass, Submit
from engine.open_requests import OpenRequests
from engine.paced_runner import PacedRunner
from engine.rank_messages import FromGateway, GatewayGone, RankCommand, RankEvent, StepReport
from engine.step import SampledToken, StepPlan, StepResult
from engine.step_loop import StepLoop
from wire.pipe import SyncPipe

CONFIG = EngineConfig(runner="paced", max_num_seqs=4)
NUM_BLOCKS = 16


@dataclass
class Breakable:
    inner: PacedRunner
    is_broken: bool = False

    def execute(self, plan: StepPlan) -> StepResult:
        if self.is_broken:
            raise RuntimeError("the device is gone")
        return self.inner.execute(plan)

    def take_sampled(self, sampled: Sequence[SampledToken]) -> None:
        self.inner.take_sampled(sampled)

    def attach_arena(self, arena: memoryview, layout: ImageLayout, socket_path: str) -> None:
        self.inner.attach_arena(arena, layout, socket_path)

    def detach_arena(self) -> None:
        self.inner.detach_arena()

    def close(self) -> None:
        self.inner.close()


@dataclass
class Clock:
    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Bench:
    """A step loop, and the front's bookkeeping of it."""

    loop: StepLoop
    runner: Breakable
    clock: Clock
    pipe: SyncPipe
    ledger: CreditLedger = field(
        default_factory=lambda: CreditLedger(64, ttft_budget_s=1e9, step_budget_tokens=10**9)
    )

    def __post_init__(self) -> None:
        self.open = OpenRequests(self.ledger)

    def tell(self, command: RankCommand) -> None:
        self.pipe.send(msgspec.msgpack.encode(command))

    def submit(self, source: int, request: EngineRequest) -> None:
        self.ledger.set_demand(source, (1, 0, 0))
        self.ledger.grants(LoadView(prefill_tokens_per_s=1000))
        self.open.submitted(source, request)
        self.tell(FromGateway(source, msgspec.msgpack.encode(Submit(request))))

    def abort(self, source: int, abort: Abort) -> None:
        if self.open.can_abort(source, abort.request_id):
            self.tell(FromGateway(source, msgspec.msgpack.encode(abort)))

    def turn(self) -> None:
        if self.ledger.num_in_flight == 0:
            return  # an idle loop would wait for work
        self.loop.turn()
        for frame in self.pipe.poll(0.0):
            report = msgspec.msgpack.decode(frame, type=RankEvent)
            assert isinstance(report, StepReport)
            self.open.follow(report)
        self.ledger.check_integrity()


@contextmanager
def running_bench() -> Iterator[Bench]:
    paced = PacedRunner(
        PacedConfig(),
        num_blocks=NUM_BLOCKS,
        block_size_tokens=CONFIG.block_size_tokens,
        vocab_size=100,
        eos_token_ids=[0],
        sleep=lambda _: None,
    )
    runner, clock = Breakable(paced), Clock()
    engine = Engine(
        CONFIG,
        geometry=KvGeometry((KvGroup((0,)),), 1, 1, CONFIG.block_size_tokens, 2),
        num_blocks=NUM_BLOCKS,
        max_model_len=128,
        vocab_size=100,
        runner=runner,
        clock=clock,
    )
    theirs, ours = socket.socketpair()
    loop_pipe, pipe = SyncPipe(theirs), SyncPipe(ours)
    try:
        yield Bench(StepLoop(engine, loop_pipe), runner, clock, pipe)
    finally:
        pipe.close()
        loop_pipe.close()


def make_request(
    name: str,
    *,
    prompt_len: int = 3,
    num_samples: int = 1,
    service_class: ServiceClass = ServiceClass.STANDARD,
) -> EngineRequest:
    root, prompt = BlockKey(bytes(32)), [1] * prompt_len
    return EngineRequest(
        name,
        prompt,
        root,
        [*block_keys(root, prompt, CONFIG.block_size_tokens)],
        SamplingParams(max_tokens=20, temperature=0),
        timeout_s=10.0,
        num_samples=num_samples,
        service_class=service_class,
    )


SUBMITS = st.tuples(
    st.just("submit"),
    st.sampled_from(["a", "b", "c"]),  # names that are used again, by others, too
    st.integers(0, 400),  # prompts that are empty or too long are refused
    st.integers(-1, 4),
    st.sampled_from(ServiceClass),
)
OTHERS = st.tuples(
    st.sampled_from(["turn", "turn", "abort", "abort sample", "time", "break", "gone"]),
    st.sampled_from(["a", "b", "c"]),
)


@settings(max_examples=60)
@given(events=st.lists(st.tuples(st.integers(0, 1), SUBMITS | OTHERS), max_size=40))
def test_every_place_becomes_free_however_a_sample_ends(
    events: list[tuple[int, tuple[str, str] | tuple[str, str, int, int, ServiceClass]]],
) -> None:
    with running_bench() as bench:
        sources = [1, 2]
        for lane, event in events:
            source = sources[lane]
            match event:
                case ("submit", name, prompt_len, num_samples, service_class):
                    if bench.ledger.num_in_flight < 32:
                        bench.submit(
                            source,
                            make_request(
                                name,
                                prompt_len=prompt_len,
                                num_samples=num_samples,
                                service_class=service_class,
                            ),
                        )
                case ("turn", _):
                    bench.turn()
                case ("abort", name):
                    bench.abort(source, Abort(name))
                case ("abort sample", name):
                    bench.abort(source, Abort(name, index=0))
                case ("time", _):
                    bench.clock.now_s += 11.0
                case ("break", _):
                    bench.runner.is_broken = True
                    bench.turn()
                    bench.runner.is_broken = False
                case ("gone", _):
                    bench.ledger.set_demand(source, (0, 0, 0))
                    bench.ledger.closed(source)
                    bench.tell(GatewayGone(source))
                    sources[lane] = max(sources) + 1
        for _ in range(300):
            if bench.ledger.num_in_flight == 0:
                break
            bench.turn()
        assert bench.ledger.num_in_flight == 0
        assert len(bench.open) == 0
        assert sum(bench.ledger._num_unstarted_tokens) == 0


def test_a_failed_step_frees_the_places_of_all_its_samples() -> None:
    with running_bench() as bench:
        bench.submit(1, make_request("a", num_samples=3))
        bench.turn()
        assert bench.ledger.num_in_flight == 3
        bench.runner.is_broken = True
        bench.turn()
        assert bench.ledger.num_in_flight == 0


def test_an_id_that_is_in_use_is_refused_and_its_places_come_back_to_who_used_it() -> None:
    with running_bench() as bench:
        bench.submit(1, make_request("a", num_samples=2))
        bench.submit(2, make_request("a", num_samples=4, service_class=ServiceClass.BATCH))
        bench.turn()
        assert bench.ledger.num_in_flight == 2


def test_more_aborts_than_can_have_an_effect_go_nowhere() -> None:
    with running_bench() as bench:
        bench.submit(1, make_request("a", num_samples=2))
        assert not bench.open.can_abort(2, "a")
        assert [bench.open.can_abort(1, "a") for _ in range(5)] == [True] * 3 + [False] * 2
