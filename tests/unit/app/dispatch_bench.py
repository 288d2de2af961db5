"""A dispatcher with engines in the test's hand and a clock that the test sets."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from app.config import GatewayConfig
from app.dispatch import Dispatcher
from app.errors import ApiError
from app.queue import Job
from app.text.tokenization import Prompt
from cache_tiers.keys import BlockKey, block_keys
from engine.messages import SamplingParams, ServiceClass, TokenDelta
from tests.unit.app.fakes import FakeEngine, make_card


@dataclass(eq=False)
class Recorder:
    """An ``Answer`` that remembers."""

    deltas: list[TokenDelta] = field(default_factory=list)
    error: ApiError | None = None
    num_restarts: int = 0
    is_whole: bool = False
    """Nothing is shown before the end, so it may restart after tokens came."""
    is_missing_text: bool = True

    @property
    def can_restart(self) -> bool:
        return self.is_whole or not any(delta.token_ids for delta in self.deltas)

    def restart(self) -> None:
        self.num_restarts += 1
        self.deltas = []

    def on_delta(self, delta: TokenDelta) -> None:
        self.deltas.append(delta)

    def fail(self, error: ApiError) -> None:
        self.error = error


@dataclass(eq=False)
class Bench:
    """A dispatcher, its clock and the jobs a test sends."""

    dispatcher: Dispatcher
    now_s: float = 100.0
    num_jobs: int = 0

    def add(self, *engines: FakeEngine) -> None:
        for engine in engines:
            engine.listener = self.dispatcher.engines
            self.dispatcher.engines.add(engine)

    def send(
        self,
        num_tokens: int = 20,
        *,
        token: int = 7,
        model: str = "m",
        num_samples: int = 1,
        is_whole: bool = False,
        service_class: ServiceClass = ServiceClass.INTERACTIVE,
    ) -> Job:
        job = self.job(num_tokens, token=token, model=model)
        job.service_class = service_class
        job.num_samples = num_samples
        job.answer = Recorder(is_whole=is_whole)
        self.dispatcher.enqueue(job)
        return job

    def job(self, num_tokens: int = 20, *, token: int = 7, model: str = "m") -> Job:
        self.num_jobs += 1
        root = BlockKey(make_card(model=model).root_key)
        token_ids = [token] * num_tokens
        return Job(
            request_id=f"r{self.num_jobs}",
            prompt=Prompt(token_ids, root, list[bytes](block_keys(root, token_ids, 16)), root),
            sampling=SamplingParams(max_tokens=5),
            answer=Recorder(),
            service_class=ServiceClass.INTERACTIVE,
            arrived_s=self.now_s + self.num_jobs / 1000,
            deadline_s=self.now_s + 600,
        )


def answer_of(job: Job) -> Recorder:
    assert isinstance(job.answer, Recorder)
    return job.answer


@asynccontextmanager
async def dispatch_bench() -> AsyncIterator[Bench]:
    config = GatewayConfig(max_queue_len=4, max_queue_wait_s=10)
    bench = Bench(dispatcher=None)  # type: ignore[arg-type]
    bench.dispatcher = Dispatcher("m", config, clock=lambda: bench.now_s, first_rotation=0)
    yield bench
    await bench.dispatcher.close()


def waiting(engine_id: str) -> FakeEngine:
    """An engine that has granted nothing yet."""
    return FakeEngine(engine_id, num_credits=0)
