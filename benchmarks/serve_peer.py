"""The fleet benchmarks' peer: the same engines and the same gateway, with a request router of Serve
between them.

Each engine steps in a thread of its Serve replica. The gateway reaches all of them by one streaming
handle. To clients there is one model per router, called as the router (`serve_peer_routers`).
Nothing here is used in service.
"""

# Serve reads the annotations of builders, so they must stay real classes: no postponing here.
import asyncio
import queue
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import msgspec
from pydantic import BaseModel, ConfigDict
from ray import serve
from ray.serve import Application
from ray.serve.config import RequestRouterConfig
from ray.serve.handle import DeploymentHandle
from starlette.types import ASGIApp

from app.client import QUERY_TIMEOUT_S, DeltaSink, EngineListener
from app.config import GatewayConfig, ModelRoute
from app.gateway import Gateway
from app.membership import EngineAddress, PrepareCard
from app.server import create_asgi_app
from benchmarks.serve_peer_routers import PeerRequest, RouterName, prompt_text
from cache_tiers.rung import Rung
from engine.config import EngineConfig, EngineSpec
from engine.engine import Engine
from engine.messages import (
    EngineRequest,
    FinishReason,
    LoadView,
    ModelCard,
    QueryKind,
    TokenDelta,
)
from engine.model_card import make_model_card
from engine.rank_messages import Ready
from engine.rung_messages import RungOrder, RungState
from engine.runner import create_runner
from wire.endpoint import Endpoint

IDLE_POLL_S = 0.05
UNLIMITED = 1_000_000
"""Credits: Serve's router holds requests back, not the gateway."""


class PeerArgs(BaseModel):
    """`args:` of `build`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    checkpoint: str
    num_replicas: int
    num_gateways: int
    engine: EngineConfig
    routers: tuple[RouterName, ...] = ("power_of_two",)


def build(args: PeerArgs) -> Application:
    """Engines with Serve's default request router, or with one that can do more where asked for,
    and gateways in front."""
    engines = serve.deployment(
        name="PeerEngine",
        num_replicas=args.num_replicas,
        max_ongoing_requests=args.engine.max_num_seqs,
        request_router_config=(
            RequestRouterConfig()
            if args.routers == ("power_of_two",)
            else RequestRouterConfig(
                request_router_class="benchmarks.serve_peer_routers:SwitchedRouter"
            )
        ),
        ray_actor_options={"num_cpus": 0},
    )(PeerEngine)
    gateway = serve.deployment(
        name="PeerGateway",
        num_replicas=args.num_gateways,
        max_ongoing_requests=10_000,
        ray_actor_options={"num_cpus": 0},
    )(PeerGateway)
    spec = EngineSpec(model=args.name, checkpoint=Path(args.checkpoint), config=args.engine)
    return gateway.bind(args.routers, engines.bind(spec.model_dump_json()))


class PeerEngine:
    """One engine, its step loop in a thread: `step` of a paced engine sleeps without the GIL."""

    async def __init__(self, spec_json: str) -> None:  # type: ignore[misc]  # Serve awaits it
        spec = EngineSpec.model_validate_json(spec_json)
        loaded = create_runner(spec)
        self._engine = Engine(
            spec.config,
            geometry=loaded.geometry,
            num_blocks=loaded.num_blocks,
            max_model_len=loaded.max_model_len,
            vocab_size=loaded.vocab_size,
            runner=loaded.runner,
        )
        ready = Ready(
            num_blocks=loaded.num_blocks,
            max_model_len=loaded.max_model_len,
            max_request_tokens=self._engine.max_request_tokens,
            vocab_size=loaded.vocab_size,
            weights_revision=loaded.weights_revision,
            load=LoadView(),
            load_time_s=0.0,
            warm_up_time_s=0.0,
        )
        card = make_model_card(spec, loaded.checkpoint, ready, engine_id="serve")
        self._card = msgspec.msgpack.encode(card)
        self._inbox: queue.SimpleQueue[EngineRequest | str] = queue.SimpleQueue()
        self._streams: dict[str, asyncio.Queue[list[TokenDelta]]] = {}
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._run, name="step loop", daemon=True).start()

    async def card(self) -> bytes:
        """The encoded model card."""
        return self._card

    async def generate(self, asked: PeerRequest) -> AsyncIterator[bytes]:
        """Runs a request; yields the encoded deltas of each step."""
        request = msgspec.msgpack.decode(asked.payload, type=EngineRequest)
        stream = self._streams[request.request_id] = asyncio.Queue()
        self._inbox.put(request)
        try:
            while True:
                deltas = await stream.get()
                yield msgspec.msgpack.encode(deltas)
                if any(delta.finish_reason is not None for delta in deltas):
                    break
        finally:
            del self._streams[request.request_id]
            self._inbox.put(request.request_id)  # ends what the client does not want any more

    def _run(self) -> None:
        while True:
            self._take()
            deltas_of = defaultdict(list)
            for delta in self._engine.step().deltas:
                deltas_of[delta.request_id].append(delta)
            self._loop.call_soon_threadsafe(self._deliver, dict(deltas_of))

    def _take(self) -> None:
        while True:
            try:
                item = self._inbox.get(
                    block=not self._engine.has_work,
                    timeout=None if self._engine.has_work else IDLE_POLL_S,
                )
            except queue.Empty:
                if self._engine.has_work:
                    return
                continue
            if isinstance(item, str):
                self._engine.abort(item)
            else:
                self._engine.add(item)

    def _deliver(self, deltas_of: dict[str, list[TokenDelta]]) -> None:
        for request_id, deltas in deltas_of.items():
            stream = self._streams.get(request_id)
            if stream is not None:
                stream.put_nowait(deltas)


class HandleClient:
    """`app.client.EngineClient` over a Serve handle: all engines look like one that takes all."""

    def __init__(
        self,
        handle: DeploymentHandle[Any],
        router: RouterName,
        card: ModelCard,
        listener: EngineListener,
    ) -> None:
        self._handle = handle.options(stream=True)
        self._router: RouterName = router
        self.card = card
        self.load = LoadView()
        self.num_credits = UNLIMITED
        self.num_gateways = 1
        self.is_accepting = True
        self.is_draining = False
        self.rung_state = RungState(Rung.SERVING)
        self._listener = listener
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def set_demand(self, num_waiting: tuple[int, int, int]) -> None:
        """Serve's router asks nobody."""

    def submit(self, request: EngineRequest, sink: DeltaSink) -> None:
        task = asyncio.create_task(self._generate(request, sink))
        self._tasks[request.request_id] = task
        task.add_done_callback(lambda _: self._tasks.pop(request.request_id, None))

    def abort(
        self, request_id: str, num_kept_tokens: int | None = None, index: int | None = None
    ) -> None:
        task = self._tasks.get(request_id)
        if task is not None:
            task.cancel()

    def request_snapshot(self) -> None:
        """There is no index."""

    def set_rung(self, order: RungOrder) -> None:
        """Nothing sleeps."""

    def set_successor(self, *, exists: bool) -> None:
        """Nothing is handed over."""

    async def query(
        self, kind: QueryKind, argument: str, timeout_s: float = QUERY_TIMEOUT_S
    ) -> bytes | None:
        return None

    async def close(self) -> None:
        self.is_accepting = False
        for task in list(self._tasks.values()):
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._listener.on_closed(self, "closed")

    async def _generate(self, request: EngineRequest, sink: DeltaSink) -> None:
        error = "The engine ended early."
        try:
            asked = PeerRequest(
                msgspec.msgpack.encode(request),
                self._router,
                prompt_text(self._router, request.token_ids),
            )
            async for frame in self._handle.generate.remote(asked):
                for delta in msgspec.msgpack.decode(frame, type=list[TokenDelta]):
                    sink(delta)
                    if delta.finish_reason is not None:
                        return
        except asyncio.CancelledError:
            error = "The request was aborted."
        except Exception as failure:  # whatever Serve raises ends this request alone
            error = f"Serve: {type(failure).__name__}"
        sink(TokenDelta(request.request_id, [], FinishReason.ERROR, error=error))


Connect = Callable[[EngineAddress, EngineListener, PrepareCard], Awaitable[HandleClient]]


@serve.ingress()
class PeerGateway:
    """The product's gateway with a Serve handle in place of its channels."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, routers: tuple[RouterName, ...], engines: DeploymentHandle[Any]
    ) -> None:
        config = GatewayConfig(models=tuple(ModelRoute(name=router) for router in routers))
        self._gateway = Gateway(config, connect=_connect_by(engines))
        for router in routers:
            address = EngineAddress(router, Endpoint("127.0.0.1", 0), b"")
            self._gateway.set_engines(router, {router: address})

    def __serve_build_asgi_app__(self) -> ASGIApp:
        """Serve asks for the app once, after the constructor."""
        return create_asgi_app(self._gateway)


def _connect_by(engines: DeploymentHandle[Any]) -> Connect:
    async def connect(
        address: EngineAddress, listener: EngineListener, prepare: PrepareCard
    ) -> HandleClient:
        card = msgspec.msgpack.decode(await engines.card.remote(), type=ModelCard)
        router = cast(RouterName, address.engine_id)
        return HandleClient(
            engines,
            router,
            await prepare(msgspec.structs.replace(card, engine_id=router)),
            listener,
        )

    return connect
