"""The whole chain without Ray: an HTTP gateway over sockets, engine fronts and their step loops."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import uvicorn

from app.config import GatewayConfig, ModelRoute
from app.gateway import Gateway
from app.membership import EngineAddress
from app.server import create_asgi_app
from engine.config import EngineConfig, EngineSpec
from engine.front import EngineFront
from tests.quickstart import MODEL, quickstart_checkpoint


@dataclass(frozen=True, slots=True)
class Chain:
    """A running chain; ``fronts`` are its engine replicas."""

    base_url: str
    gateway: Gateway
    fronts: list[EngineFront]
    addresses: dict[str, EngineAddress]
    """Of the fronts, by engine id; whoever adds one tells the gateway."""
    create_front: Callable[[str, EngineConfig | None], EngineFront]
    """With that id, configured like the others or otherwise."""
    secret: bytes

    @asynccontextmanager
    async def another_engine(
        self, config: EngineConfig | None = None
    ) -> AsyncIterator[EngineFront]:
        """One more, from now on; configured like the others without ``config``."""
        engine_id = f"{MODEL}/{len(self.addresses)}"
        front = self.create_front(engine_id, config)
        try:
            address = EngineAddress(engine_id, await front.start(), self.secret)
            self.addresses[engine_id] = address
            self.gateway.set_engines(MODEL, self.addresses)
            yield front
        finally:
            await front.close()


@asynccontextmanager
async def running_chain(config: EngineConfig, *, num_engines: int = 1) -> AsyncIterator[Chain]:
    """Serve the quickstart model on a free port of the loopback interface."""
    checkpoint = await asyncio.to_thread(quickstart_checkpoint)
    spec = EngineSpec(model=MODEL, checkpoint=checkpoint.path, config=config)
    secret = secrets.token_bytes(32)

    def create_front(engine_id: str, other: EngineConfig | None = None) -> EngineFront:
        return EngineFront(
            spec if other is None else spec.model_copy(update={"config": other}),
            engine_id=engine_id,
            secret=secret,
            host="127.0.0.1",
            unix_dir=None,
        )

    async with AsyncExitStack() as stack:
        fronts = [create_front(f"{MODEL}/{number}") for number in range(num_engines)]
        for front in fronts:
            stack.push_async_callback(front.close)
        endpoints = await asyncio.gather(*(front.start() for front in fronts))
        gateway = Gateway(GatewayConfig(models=(ModelRoute(name=MODEL),)))
        stack.push_async_callback(gateway.close)
        addresses = {
            f"{MODEL}/{number}": EngineAddress(f"{MODEL}/{number}", endpoint, secret)
            for number, endpoint in enumerate(endpoints)
        }
        gateway.set_engines(MODEL, addresses)
        port = await stack.enter_async_context(_serving(gateway))
        async with asyncio.timeout(10):
            while len(gateway.dispatchers[MODEL].fleet) < num_engines:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        url = f"http://127.0.0.1:{port}"
        yield Chain(url, gateway, fronts, addresses, create_front, secret)


@asynccontextmanager
async def _serving(gateway: Gateway) -> AsyncIterator[int]:
    """Yields the port."""
    server = uvicorn.Server(
        uvicorn.Config(create_asgi_app(gateway), port=0, log_level="error", lifespan="off")
    )
    task = asyncio.create_task(server.serve())
    async with asyncio.timeout(10):
        while not server.started:  # noqa: ASYNC110 (uvicorn offers no event)
            await asyncio.sleep(0.01)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        await task
