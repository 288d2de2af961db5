"""The list of the gateways' scrape ports: renewed when it is needed, kept when that fails."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from app.fleet_metrics import ScrapeTarget
from deployments.gateway_targets import MAX_AGE_S, MAX_WAIT_S, GatewayTargets, to_metadata

OWN = ScrapeTarget("g/own", "gateway", "10.0.0.1", 1)
OTHER = ScrapeTarget("g/other", "gateway", "10.0.0.2", 2)


class Serve:
    """Answers what a test tells it; never, while ``is_stuck``."""

    def __init__(self, *answers: Any) -> None:
        self.answers = answers
        self.is_stuck = False
        self.num_asked = 0
        self.now_s = 100.0

    async def ask(self) -> Sequence[Any]:
        self.num_asked += 1
        if self.is_stuck:
            await asyncio.sleep(60)
        return self.answers

    def targets(self) -> GatewayTargets:
        return GatewayTargets(OWN, self.ask, clock=lambda: self.now_s)


async def test_every_gateway_is_known_by_what_it_says() -> None:
    targets = Serve(to_metadata(OTHER), to_metadata(OWN)).targets()
    assert sorted(await targets.targets(), key=str) == sorted([OWN, OTHER], key=str)


async def test_the_autoscaler_among_them_keeps_its_role() -> None:
    autoscaler = ScrapeTarget("g/a", "autoscaler", "10.0.0.3", 3)
    targets = Serve(to_metadata(OWN), to_metadata(autoscaler)).targets()
    assert autoscaler in await targets.targets()


async def test_its_own_port_is_known_without_any_answer() -> None:
    serve = Serve(RuntimeError("the application is not there yet"))
    assert await serve.targets().targets() == [OWN]


async def test_a_fresh_list_is_not_asked_for_again_and_an_old_one_is() -> None:
    serve = Serve(to_metadata(OWN), to_metadata(OTHER))
    targets = serve.targets()
    await asyncio.gather(targets.targets(), targets.targets())
    await targets.targets()
    assert serve.num_asked == 1
    serve.now_s += MAX_AGE_S + 0.1
    serve.answers = (to_metadata(OWN),)
    assert await targets.targets() == [OWN]
    assert serve.num_asked == 2


async def test_who_does_not_answer_stays_known_and_costs_a_bounded_time() -> None:
    serve = Serve(to_metadata(OWN), to_metadata(OTHER))
    targets = serve.targets()
    await targets.targets()
    serve.now_s += MAX_AGE_S + 0.1
    serve.is_stuck = True
    started_s = time.monotonic()
    assert set(await targets.targets()) == {OWN, OTHER}
    assert time.monotonic() - started_s < MAX_WAIT_S + 0.1
    await targets.close()


async def test_a_call_that_failed_does_not_remove_its_gateway() -> None:
    serve = Serve(to_metadata(OWN), to_metadata(OTHER))
    targets = serve.targets()
    await targets.targets()
    serve.now_s += MAX_AGE_S + 0.1
    serve.answers = (to_metadata(OWN), ConnectionError("died"))
    assert set(await targets.targets()) == {OWN, OTHER}
