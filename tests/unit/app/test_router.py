"""A router that stands alone says where a request should go, and sends nothing."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import orjson
import pytest

from app.config import GatewayConfig, ModelRoute
from app.dispatch import Dispatcher
from app.errors import ContextLengthError, WeightsReplacedError
from app.gateway import Gateway
from app.member import Member
from app.requests.answer_schemas import Route
from app.requests.openapi import router_document
from app.router import Router as AppRouter
from app.server import create_router_app
from engine.messages import CacheSnapshot, LoadView
from tests.unit.app.dispatch_bench import Bench
from tests.unit.app.fakes import FakeEngine, connector, join, make_card, until

QUESTION = [{"role": "user", "content": "Where to? " * 60}]
CHAT = {"model": "alias", "messages": QUESTION}


class Router:
    """Three engines, and a client of the router."""

    def __init__(self, **config: Any) -> None:
        self.engines = {engine_id: FakeEngine(engine_id) for engine_id in ("a", "b", "c")}
        models = (ModelRoute(name="m", aliases=("alias",)),)
        self.gateway = Gateway(
            GatewayConfig(models=models, **config), connect=connector(self.engines)
        )
        self.http = httpx.AsyncClient(
            transport=httpx.ASGITransport(create_router_app(self.gateway)),
            base_url="http://router",
        )

    async def ask(self, body: dict[str, Any]) -> dict[str, Any]:
        response = await self.http.post("/v1/route", json=body)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    async def keys_of(self, body: dict[str, Any]) -> list[bytes]:
        tokenizer = await self.gateway.tokenizers.get(make_card())
        return tokenizer.prompt(body["messages"]).index_keys


@pytest.fixture
async def router() -> AsyncIterator[Router]:
    router = Router()
    await join(router.gateway, "m", router.engines)
    yield router
    await router.http.aclose()
    await router.gateway.close()


async def test_it_names_the_engine_that_holds_the_prompt_and_sends_nothing(router: Router) -> None:
    dispatcher = router.gateway.dispatchers["m"]
    held = CacheSnapshot(0, await router.keys_of(CHAT))
    dispatcher.engines.on_snapshot(router.engines["b"], held)
    answer = await router.ask(CHAT)
    assert (answer["engine_id"], answer["model"], answer["source"]) == ("b", "m", "local")
    assert answer["address"] == "127.0.0.1:1"
    assert 600 < answer["predicted_cached_tokens"] < answer["prompt_tokens"]
    assert {option["engine_id"] for option in answer["alternatives"]} == {"a", "c"}
    assert all(
        option["predicted_ttft_ms"] > answer["predicted_ttft_ms"]
        and option["predicted_cached_tokens"] == 0
        for option in answer["alternatives"]
    )
    assert not any(engine.requests for engine in router.engines.values())


async def test_the_answer_is_as_documented(router: Router) -> None:
    document = orjson.loads(router_document())
    answer = await router.ask(CHAT)
    assert Route.model_validate(answer).model_dump() == answer
    assert set(document["components"]["schemas"]) >= {"Route", "RouteOption", "ChatRequest"}
    assert set(document["paths"]) >= {"/v1/route", "/health", "/v1/models"}
    assert "/v1/chat/completions" not in document["paths"]


async def test_what_it_has_just_answered_counts_as_load(router: Router) -> None:
    """Prompts that share nothing spread, though no engine has said anything meanwhile."""
    bodies = [{"model": "m", "prompt": f"{number} " * 200} for number in range(9)]
    chosen = [(await router.ask(body))["engine_id"] for body in bodies]
    assert {chosen.count(engine_id) for engine_id in router.engines} == {3}


async def test_a_prompt_that_was_just_routed_is_expected_where_it_went(router: Router) -> None:
    first = await router.ask(CHAT)
    await show(router, first["engine_id"])
    again = await router.ask(CHAT)
    assert first["predicted_cached_tokens"] == 0
    assert again["engine_id"] == first["engine_id"]
    assert again["predicted_cached_tokens"] > 600


async def test_a_load_view_takes_over_what_it_shows(router: Router) -> None:
    answer = await router.ask(CHAT)
    member = await show(router, answer["engine_id"])
    assert not member.unseen
    assert member.num_in_flight == 1


async def test_what_nobody_ever_sends_is_forgotten(
    router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.router.MIN_ANSWER_S", 0.02)
    for engine in router.engines.values():
        engine.step(LoadView(mean_answer_s=0.02))
    for number in range(20):
        await router.ask({"model": "m", "prompt": f"{number} " * 200})
    dispatcher = router.gateway.dispatchers["m"]
    members = list(dispatcher.fleet)
    counted = [job for member in members for job in member.routed.values()]
    assert counted
    assert not any(job.prompt.token_ids or job.prompt.block_keys for job in counted)
    assert dispatcher.fleet.index.num_bytes > 0
    await until(lambda: not any(member.routed for member in members))
    assert dispatcher.fleet.index.num_bytes == 0
    for member in members:
        assert (member.num_in_flight, member.num_unseen_samples) == (0, 0)
        assert not member.unconfirmed
    dispatcher.check_integrity()


async def test_what_was_routed_to_a_lost_engine_is_forgotten_with_it(
    router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.router.MIN_ANSWER_S", 0.02)
    for engine in router.engines.values():
        engine.step(LoadView(mean_answer_s=0.02))
    dispatcher = router.gateway.dispatchers["m"]
    lost = dispatcher.fleet.get((await router.ask(CHAT))["engine_id"])
    assert lost is not None
    router.engines[lost.engine_id].lose()
    back = FakeEngine(lost.engine_id)
    dispatcher.engines.add(back)
    await until(lambda: not lost.routed)
    dispatcher.check_integrity()
    assert dispatcher.fleet.index.num_bytes == 0


async def test_a_prompt_made_for_weights_that_have_gone_is_to_be_sent_again() -> None:
    bench = Bench(Dispatcher("m", GatewayConfig()))
    bench.add(FakeEngine(card=make_card("new", model="next")))
    with pytest.raises(WeightsReplacedError, match="Send the request again"):
        AppRouter(bench.dispatcher).route(bench.job())
    with pytest.raises(ContextLengthError):
        AppRouter(bench.dispatcher).route(bench.job(3000, model="next"))
    await bench.dispatcher.close()


async def show(router: Router, engine_id: str) -> Member:
    """A second later the engine's load view comes."""
    member = router.gateway.dispatchers["m"].fleet.get(engine_id)
    assert member is not None
    (job,) = member.unseen
    assert job.submitted_s is not None
    job.submitted_s -= 1.0
    router.engines[engine_id].step(LoadView(num_running=1))
    return member


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"model": "other", "prompt": "x"}, 404, None),
        ({"model": "m"}, 400, "prompt"),
        ({"model": "m", "prompt": ["x", "y"]}, 400, "prompt"),
        ({"model": "m", "messages": []}, 400, "messages"),
        ({"model": "m", "prompt": "x" * 3000}, 400, "prompt"),
        ({"model": "m", "messages": QUESTION, "max_tokens": 9000}, 400, "messages"),
        ({"model": "m", "prompt": [999]}, 400, "prompt"),
    ],
)
async def test_what_no_engine_could_serve_is_refused(
    router: Router, body: dict[str, Any], status: int, param: str | None
) -> None:
    response = await router.http.post("/v1/route", json=body)
    assert response.status_code == status
    assert response.json()["error"]["param"] == param


async def test_nothing_is_generated_and_keys_are_asked_for() -> None:
    router = Router(api_keys=("secret",))
    assert (await router.http.post("/v1/route", json=CHAT)).status_code == 401
    headers = {"authorization": "Bearer secret"}
    response = await router.http.post("/v1/chat/completions", json=CHAT, headers=headers)
    assert response.status_code == 404
    loading = await router.http.post("/v1/route", json=CHAT, headers=headers)
    assert (loading.status_code, loading.json()["error"]["code"]) == (503, "model_loading")
    assert int(loading.headers["retry-after"]) > 0
    assert (await router.http.get("/health")).status_code == 200
    page = (await router.http.get("/metrics", headers=headers)).text
    assert 'route="/v1/route"' in page
    await router.http.aclose()
    await router.gateway.close()
