"""Random schedules of what can happen to requests and engines: each request ends once."""

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from app.config import GatewayConfig
from app.dispatch import Dispatcher
from app.errors import ApiError
from app.queue import Job
from app.tokenization import Prompt
from engine.messages import FinishReason, LoadView, SamplingParams, TokenDelta
from tests.unit.app.fakes import FakeEngine, make_card

PICK = st.integers(0, 5)
NAMES = ["send", "join", "grant", "token", "finish", "cancel", "lose", "drain", "retire", "load"]
OPERATIONS = st.lists(
    st.tuples(st.sampled_from([*NAMES, "send", "send", "grant", "wait", "expire"]), PICK),
    max_size=60,
)


class EndsOnce:
    """An ``Answer`` that checks the order of what it hears."""

    def __init__(self) -> None:
        self.num_endings = 0

    def on_delta(self, delta: TokenDelta) -> None:
        assert not self.num_endings, "something follows the end"
        self.num_endings += delta.finish_reason is not None

    def fail(self, error: ApiError) -> None:
        assert not self.num_endings, "it fails after its end"
        self.num_endings += 1


class Schedule:
    """One dispatcher, any number of engines, and what a schedule does to them."""

    def __init__(self) -> None:
        self.now_s = 0.0
        config = GatewayConfig(max_queue_len=5, max_queue_wait_s=10)
        self.dispatcher = Dispatcher("m", config, clock=lambda: self.now_s)
        self.engines: list[FakeEngine] = []
        self.answers: dict[str, EndsOnce] = {}
        self.cancelled: set[str] = set()
        self.num_sent = 0

    async def run(self, operations: list[tuple[str, int]]) -> None:
        for name, pick in operations:
            await getattr(self, name)(pick)
            self.check()
        while self.engines:
            await self.lose(0)
        await self.expire(6)
        await self.dispatcher.close()
        open_ids = [
            request_id
            for request_id, answer in self.answers.items()
            if answer.num_endings != 1 and request_id not in self.cancelled
        ]
        assert not open_ids
        assert self.dispatcher.num_waiting == self.dispatcher.num_running == 0

    def check(self) -> None:
        """Demands say how many wait, and what engines run is what the dispatcher thinks."""
        self.dispatcher.check_integrity()
        assert self.dispatcher.num_running == sum(len(engine.sinks) for engine in self.engines)
        usable = [engine for engine in self.engines if self.is_open(engine)]
        if usable:
            assert self.dispatcher.num_waiting == sum(engine.num_wanted for engine in usable)

    def is_open(self, engine: FakeEngine) -> bool:
        member = self.dispatcher.fleet.get(engine.card.engine_id)
        return member is not None and member.is_accepting

    def engine(self, pick: int) -> FakeEngine | None:
        return self.engines[pick % len(self.engines)] if self.engines else None

    async def send(self, pick: int) -> None:
        self.num_sent += 1
        request_id = f"r{self.num_sent:04}"
        prompt = Prompt([pick] * 300, make_card().root_key, [bytes([pick, n]) for n in range(18)])
        answer = EndsOnce()
        job = Job(
            request_id=request_id,
            prompt=prompt,
            sampling=SamplingParams(max_tokens=5),
            answer=answer,
            arrived_s=self.now_s,
            deadline_s=self.now_s + 100,
        )
        try:
            self.dispatcher.enqueue(job)
        except ApiError:
            return
        self.answers[request_id] = answer

    async def join(self, pick: int) -> None:
        engine = FakeEngine(
            f"e{len(self.answers)}-{self.now_s}-{id(object())}", num_credits=pick % 2
        )
        engine.listener = self.dispatcher
        self.engines.append(engine)
        self.dispatcher.add_engine(engine)

    async def grant(self, pick: int) -> None:
        engine = self.engine(pick)
        if engine is not None and engine.is_accepting:
            engine.grant()

    async def token(self, pick: int) -> None:
        engine = self.engine(pick)
        if engine is not None and engine.sinks:
            engine.say(next(iter(engine.sinks)), "x")

    async def finish(self, pick: int) -> None:
        engine = self.engine(pick)
        if engine is not None and engine.sinks:
            engine.say(next(iter(engine.sinks)), "x", FinishReason.STOP)
            await self.wait(pick)

    async def cancel(self, pick: int) -> None:
        still_open = [r for r, answer in self.answers.items() if not answer.num_endings]
        still_open = [r for r in still_open if r not in self.cancelled]
        if still_open:
            request_id = still_open[pick % len(still_open)]
            self.cancelled.add(request_id)
            self.dispatcher.cancel(request_id)

    async def lose(self, pick: int) -> None:
        engine = self.engine(pick)
        if engine is not None:
            self.engines.remove(engine)
            engine.lose()

    async def drain(self, pick: int) -> None:
        engine = self.engine(pick)
        if engine is not None and engine.is_accepting:
            engine.is_accepting = False
            engine.num_credits = 0
            self.dispatcher.on_draining(engine)

    async def retire(self, pick: int) -> None:
        engine = self.engine(pick)
        if engine is not None:
            self.dispatcher.retire_engine(engine.card.engine_id)
            await self.wait(pick)

    async def load(self, pick: int) -> None:
        engine = self.engine(pick)
        if engine is not None:
            engine.step(LoadView(num_running=pick * 10, step_time_s=0.1))

    async def wait(self, pick: int) -> None:
        for _ in range(3):  # closing a retired engine takes a few turns
            await asyncio.sleep(0)
        self.engines = [engine for engine in self.engines if engine.listener is not None]

    async def expire(self, pick: int) -> None:
        self.now_s += 2.0 * pick
        if self.dispatcher._tick_handle is not None:  # now, not in 50 ms
            self.dispatcher._tick_handle.cancel()
            self.dispatcher._tick()


@given(OPERATIONS)
@settings(max_examples=100, deadline=None)
def test_each_request_ends_once_whatever_happens(operations: list[tuple[str, int]]) -> None:
    async def run() -> None:
        await Schedule().run(operations)

    asyncio.run(run())
