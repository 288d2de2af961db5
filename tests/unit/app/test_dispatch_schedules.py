"""Random schedules of what can happen to requests and engines: each request ends once, and no token
is lost, repeated or changed.
"""

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from app.answers.answer import Answer, AskedPrompt
from app.answers.generation import FinishedBy, Piece, TextRules
from app.config import GatewayConfig, PoolConfig, PoolsConfig
from app.dispatch import Dispatcher
from app.errors import ApiError
from app.queue import Job
from app.text.detokenizer import create_detokenizer_factory
from app.text.tokenization import Prompt
from cache_tiers.rung import Rung
from engine.messages import FinishReason, LoadView, SamplingParams, ServiceClass
from tests.unit.app.fakes import TOKENIZER, FakeEngine, make_card

PICK = st.integers(0, 5)
NAMES = [
    "send",
    "join",
    "grant",
    "token",
    "finish",
    "fail",
    "cancel",
    "lose",
    "drain",
    "retire",
    "load",
    "sleep",
    "wake",
]
CALM_NAMES = ["send", "join", "token", "finish", "cancel", "sleep", "wake", "leave"]
CALM_OPERATIONS = st.lists(
    st.tuples(st.sampled_from([*CALM_NAMES, "send", "token", "token", "token"]), PICK),
    min_size=20,
    max_size=60,
)
"""A fleet that only grows and shrinks."""

TEXT = "abcdefghijklmnopqrstuvwxyz" * 4
"""Every answer's; a token is a letter."""
OPERATIONS = st.lists(
    st.tuples(st.sampled_from([*NAMES, "send", "send", "grant", "wait", "expire"]), PICK),
    max_size=60,
)


create_detokenizer = create_detokenizer_factory(TOKENIZER)


class OrderCheck:
    """A ``PieceSink`` that checks the order of what it hears, and that it is ``TEXT``."""

    def __init__(self, answer: Answer) -> None:
        answer.sink = self
        self.faults: list[str] = []
        """An answer survives what its sink raises."""
        self._answer = answer
        self._begun: set[int] = set()
        self._finished: set[int] = set()
        self._texts: dict[int, str] = {}

    def begin(self, index: int) -> None:
        self._expect(index not in self._begun, "a sample begins twice")
        self._expect(not self._answer.is_cancelled, "it begins for nobody")
        self._begun.add(index)

    def add(self, index: int, piece: Piece) -> None:
        self._expect(index in self._begun - self._finished, "text before the beginning or late")
        self._texts[index] = self._texts.get(index, "") + piece.text
        is_right = bool(piece.text) and TEXT.startswith(self._texts[index])
        self._expect(is_right, f"a token was lost, repeated or changed: {self._texts[index]}")

    def finish(self, index: int, reason: FinishedBy, rest: Piece) -> None:
        self._expect(index in self._begun - self._finished, "it ends before it begins, or twice")
        self._finished.add(index)
        generation = self._answer.generations[index]
        if generation.num_kept_tokens is None:  # else a part of the stop string is not shown
            num_shown = len(self._texts.get(index, ""))
            self._expect(generation.usage.completion_tokens == num_shown, "it is not whole")

    def restart(self, index: int) -> None:
        is_shown = self._answer.is_stream and index in self._begun
        self._expect(not is_shown, "shown text is void")
        self._begun.discard(index)
        self._finished.discard(index)
        self._texts.pop(index, None)

    def _expect(self, is_so: bool, fault: str) -> None:
        if not is_so:
            self.faults.append(fault)


def make_prompt(pick: int) -> Prompt:
    root = make_card().root_key
    return Prompt([pick] * 300, root, [bytes([pick, n]) for n in range(18)], root)


class Schedule:
    """One dispatcher, any number of engines, and what a schedule does to them."""

    def __init__(self, pools: PoolsConfig, max_queue_len: int = 5, num_credits: int = 0) -> None:
        """``num_credits``: of an engine that joins or wakes, at least."""
        self.now_s = 0.0
        self.num_credits = num_credits
        config = GatewayConfig(max_queue_len=max_queue_len, max_queue_wait_s=10, pools=pools)
        self.dispatcher = Dispatcher("m", config, clock=lambda: self.now_s, first_rotation=0)
        self.engines: list[FakeEngine] = []
        self.answers: list[Answer] = []
        self.checks: list[OrderCheck] = []
        self.cancelled: set[Answer] = set()
        self.num_sent = 0
        self.num_joined = 0

    async def run(self, operations: list[tuple[str, int]]) -> None:
        for name, pick in operations:
            await getattr(self, name)(pick)
            self.check()
        while self.engines:
            await self.lose(0)
        await self.expire(36)  # the longest wait of any class
        await self.dispatcher.close()
        for answer in self.answers:
            assert answer in self.cancelled or self.has_ended(answer)
        assert self.dispatcher.num_waiting == self.dispatcher.num_running == 0

    def check(self) -> None:
        """Demands say how many wait, and what engines run is what the dispatcher thinks."""
        self.dispatcher.check_integrity()
        assert not [fault for check in self.checks for fault in check.faults]
        assert self.dispatcher.num_running == sum(len(engine.sinks) for engine in self.engines)
        usable = [engine for engine in self.engines if self.is_open(engine)]
        for engine in self.engines:
            assert engine.has_successor is any(other is not engine for other in usable)
        if usable:  # and those of a pool without a place wait for any
            num_wanted = sum(engine.num_wanted for engine in usable)
            num_wanted -= sum(m.num_seeds_waiting for m in self.dispatcher.fleet)
            waiting = self.dispatcher._waiting
            stranded = [job for job in waiting if job.engine_id is None]
            assert self.dispatcher.fleet.pools.of_their_own or not stranded
            assert self.dispatcher.num_waiting == num_wanted + len(stranded)

    def is_open(self, engine: FakeEngine) -> bool:
        member = self.dispatcher.fleet.get(engine.card.engine_id)
        return member is not None and member.is_accepting

    def engine(self, pick: int) -> FakeEngine | None:
        return self.engines[pick % len(self.engines)] if self.engines else None

    def has_ended(self, answer: Answer) -> bool:
        assert not (answer.is_finished and answer.error is not None), "it ended twice"
        return answer.is_finished or answer.error is not None

    async def send(self, pick: int) -> None:
        """One or two prompts with one to three samples each."""
        self.num_sent += 1
        rules = TextRules(create_detokenizer, stops=("gh",))
        prompts = [
            AskedPrompt(f"r{self.num_sent:04}-{position}", 300, rules)
            for position in range(1 + pick % 2)
        ]
        num_samples = 1 + pick % 3
        answer = Answer(
            prompts,
            self.dispatcher,
            num_samples=num_samples,
            is_stream=pick < 3,
            deadline_s=self.now_s + 1000,
        )
        self.checks.append(OrderCheck(answer))
        jobs = [
            Job(
                request_id=prompt.asked.request_id,
                prompt=make_prompt(pick),
                sampling=SamplingParams(max_tokens=5),
                answer=prompt,
                arrived_s=self.now_s,
                deadline_s=self.now_s + 100,
                num_samples=num_samples,
                service_class=ServiceClass(pick % 3),
            )
            for prompt in answer.prompts
        ]
        try:
            self.dispatcher.enqueue(*jobs)
        except ApiError:
            return
        self.answers.append(answer)

    async def join(self, pick: int) -> None:
        self.num_joined += 1
        engine = FakeEngine(f"e{self.num_joined}", num_credits=self.num_credits + pick % 2)
        engine.listener = self.dispatcher.engines
        self.engines.append(engine)
        self.dispatcher.engines.add(engine)

    async def grant(self, pick: int) -> None:
        engine = self.engine(pick)
        if engine is not None and engine.is_accepting:
            engine.grant()

    async def token(self, pick: int) -> None:
        self.say(pick, None)

    async def finish(self, pick: int) -> None:
        self.say(pick, FinishReason.STOP)
        await self.wait(pick)

    async def fail(self, pick: int) -> None:
        """One sample; the engine lives on."""
        engine = self.engine(pick)
        if engine is not None and engine.samples:
            request_id, samples = next(iter(engine.samples.items()))
            index = sorted(samples)[pick % len(samples)]
            engine.say(request_id, "", FinishReason.ERROR, index)
        await self.wait(pick)

    def say(self, pick: int, finish: FinishReason | None) -> None:
        engine = self.engine(pick)
        if engine is not None and engine.samples:
            request_id, samples = next(iter(engine.samples.items()))
            self.say_next(engine, request_id, sorted(samples)[pick % len(samples)], finish)

    def say_next(
        self, engine: FakeEngine, request_id: str, index: int, finish: FinishReason | None = None
    ) -> None:
        position = engine.num_generated[request_id, index]
        engine.say(request_id, TEXT[position], finish, index)

    async def cancel(self, pick: int) -> None:
        still_open = [answer for answer in self.answers if not self.has_ended(answer)]
        still_open = [answer for answer in still_open if answer not in self.cancelled]
        if still_open:
            answer = still_open[pick % len(still_open)]
            self.cancelled.add(answer)
            answer.cancel()

    async def lose(self, pick: int) -> None:
        engine = self.engine(pick)
        if engine is not None:
            self.engines.remove(engine)
            engine.lose()

    async def drain(self, pick: int) -> None:
        engine = self.engine(pick)
        if engine is not None and engine.is_accepting:
            engine.drain()

    async def sleep(self, pick: int) -> None:
        """What can go on elsewhere does, sometimes with a last token; the rest ends here."""
        engine = self.engine(pick)
        if engine is None or engine.rung_state.rung is Rung.PARKED:
            return
        engine.stand(Rung.SERVING, is_moving=True)
        self.hand_over(engine, pick)
        if not engine.samples:
            engine.stand(Rung.PARKED, wake_s=pick)

    async def wake(self, pick: int) -> None:
        engine = self.engine(pick)
        if engine is not None and not engine.is_accepting:
            engine.stand(Rung.SERVING, num_credits=self.num_credits + pick % 3)

    async def leave(self, pick: int) -> None:
        """As Serve stops a replica."""
        engine = self.engine(pick)
        if engine is not None:
            engine.drain()
            self.hand_over(engine, pick)
            while engine.samples:
                self.say(self.engines.index(engine), FinishReason.STOP)
                await asyncio.sleep(0)
            await self.wait(pick)
            self.engines = [other for other in self.engines if other is not engine]
            engine.lose("it left")

    def hand_over(self, engine: FakeEngine, pick: int) -> None:
        for request_id, samples in list(engine.samples.items()):
            num_samples = engine.requests[request_id].num_samples
            generated = [engine.num_generated[request_id, n] for n in range(num_samples)]
            if num_samples > 1 and any(generated):
                continue
            for index in sorted(samples):
                if pick % 2 and num_samples == 1:
                    self.say_next(engine, request_id, index, FinishReason.MOVED)
                else:
                    engine.say(request_id, "", FinishReason.MOVED, index)

    async def retire(self, pick: int) -> None:
        engine = self.engine(pick)
        if engine is not None:
            self.dispatcher.engines.retire(engine.card.engine_id)
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
        if self.dispatcher._waiting._tick_handle is not None:  # now, not in 50 ms
            self.dispatcher._waiting._tick_handle.cancel()
            self.dispatcher._waiting._tick()


NO_POOLS = PoolsConfig()
POOLS = PoolsConfig(
    batch=PoolConfig(replica_share=0.4, max_samples_per_replica=2),
    long_prompts=PoolConfig(replica_share=0, max_lent_samples=1),
    long_prompt_tokens=200,
)


@given(OPERATIONS, st.sampled_from([NO_POOLS, POOLS]))
@settings(max_examples=120, deadline=None)
def test_each_request_ends_once_whatever_happens(
    operations: list[tuple[str, int]], pools: PoolsConfig
) -> None:
    async def run() -> None:
        await Schedule(pools).run(operations)

    asyncio.run(run())


@given(CALM_OPERATIONS)
@settings(max_examples=100, deadline=None)
def test_no_request_fails_as_a_fleet_grows_and_shrinks(operations: list[tuple[str, int]]) -> None:
    async def run() -> None:
        schedule = Schedule(NO_POOLS, max_queue_len=1000, num_credits=1000)
        await schedule.join(0)
        for name, pick in operations:
            await getattr(schedule, name)(pick)
            schedule.check()
        await schedule.join(0)
        engine = schedule.engines[-1]
        for other in schedule.engines[:-1]:
            await schedule.leave(schedule.engines.index(other))
        while engine.samples:
            await schedule.finish(schedule.engines.index(engine))
        schedule.check()
        for answer in schedule.answers:
            assert answer in schedule.cancelled or answer.is_finished, answer.error
        await schedule.dispatcher.close()

    asyncio.run(run())
