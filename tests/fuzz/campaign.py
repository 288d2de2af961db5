"""A fuzz run: thousands of drawn requests to one gateway, every answer checked.

Deterministic for a seed, but for how requests that are sent together meet in the engine.
"""

import asyncio
import itertools
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import httpx
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.fuzz.answer_check import AnswerCheck
from tests.fuzz.exchange import Request, send
from tests.fuzz.nearly_valid import NearlyValid
from tests.fuzz.schema_cases import SchemaCases
from tests.integration.chain import Chain
from tests.quickstart import MODEL

ROUND_LEN = 100
"""Examples until hypothesis starts afresh, with another seed."""

SCHEMA_SHARE = 0.25
"""Of the requests after the boundaries; schemathesis takes ten times as long to make one."""

MAX_ANSWER_S = 20.0


@dataclass(slots=True)
class Report:
    """What a run did."""

    num_by_source: Counter[str] = field(default_factory=Counter)
    num_by_status: Counter[int] = field(default_factory=Counter)
    num_streams: int = 0
    slowest_s: float = 0.0
    duration_s: float = 0.0

    @property
    def num_requests(self) -> int:
        return self.num_by_source.total()

    def __str__(self) -> str:
        statuses = ", ".join(f"{n} x {status}" for status, n in sorted(self.num_by_status.items()))
        sources = ", ".join(f"{n} {source}" for source, n in self.num_by_source.items())
        return (
            f"{self.num_requests} requests in {self.duration_s:.0f} s ({sources}): {statuses}; "
            f"{self.num_streams} streams; the slowest answer took {self.slowest_s:.2f} s"
        )


def fuzz(chain: Chain, runner: asyncio.Runner, *, num_requests: int, first_seed: int = 0) -> Report:
    """Send at least ``num_requests``, but the boundaries in any case; raises ``AssertionError`` at
    the first wrong answer, made as small as possible.

    ``chain`` runs on the event loop of ``runner``.
    """
    started_s = time.perf_counter()
    campaign = runner.run(_Campaign.start(chain))
    report = campaign.report
    try:
        schema, nearly = SchemaCases(campaign.document, MODEL), NearlyValid(MODEL)
        for batch in _batches(schema.boundaries(), 16):
            runner.run(campaign.send("boundaries", batch))
        num_drawn = max(0, num_requests - report.num_requests)
        sources: list[tuple[str, st.SearchStrategy[list[Request]], float]] = [
            ("schema", schema.requests(), num_drawn * SCHEMA_SHARE),
            ("nearly valid", nearly.requests(), num_drawn * (1 - SCHEMA_SHARE)),
        ]
        for name, requests, num_wanted in sources:
            for number in itertools.count(first_seed):
                if report.num_by_source[name] >= num_wanted:
                    break

                def send_batch(batch: Sequence[Request], name: str = name) -> None:
                    runner.run(campaign.send(name, batch))

                _run_round(requests, send_batch, number)
    finally:
        runner.run(campaign.client.aclose())
    report.duration_s = time.perf_counter() - started_s
    return report


class _Campaign:
    """Sends, checks and counts."""

    def __init__(self, client: httpx.AsyncClient, document: bytes) -> None:
        self.client = client
        self.document = json.loads(document)
        self.report = Report()
        self._check = AnswerCheck(self.document)

    @classmethod
    async def start(cls, chain: Chain) -> "_Campaign":
        client = httpx.AsyncClient(base_url=chain.base_url, timeout=MAX_ANSWER_S)
        return cls(client, (await client.get("/openapi.json")).content)

    async def send(self, source: str, batch: Sequence[Request]) -> None:
        self.report.num_by_source[source] += len(batch)
        await asyncio.gather(*map(self._exchange, batch))

    async def _exchange(self, request: Request) -> None:
        started_s = time.perf_counter()
        answer = await send(self.client, request)
        report = self.report
        report.slowest_s = max(report.slowest_s, time.perf_counter() - started_s)
        report.num_by_status[answer.status] += 1
        report.num_streams += answer.media_type == "text/event-stream"
        self._check.check(request, answer)


def _run_round(
    requests: st.SearchStrategy[list[Request]],
    send_batch: Callable[[Sequence[Request]], None],
    number: int,
) -> None:
    @seed(number)
    @settings(
        max_examples=ROUND_LEN,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(requests)
    def run(batch: list[Request]) -> None:
        send_batch(batch)

    run()


def _batches(requests: Iterable[Request], length: int) -> Iterable[list[Request]]:
    rest = iter(requests)
    while batch := list(itertools.islice(rest, length)):
        yield batch
