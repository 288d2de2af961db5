"""The gateway's routes as one ASGI application."""

from importlib.metadata import PackageNotFoundError, version
from typing import Any, NoReturn

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from app.chat_completions import ChatCompletions
from app.errors import MethodNotAllowedError, NotFoundError
from app.gateway import Gateway
from app.metrics import CONTENT_TYPE
from app.middleware import RequestMiddleware
from app.openai_objects import model_object
from app.record import record_of


def create_asgi_app(gateway: Gateway) -> Starlette:
    """Serves ``gateway``, which the caller owns and closes."""
    routes = _SimpleRoutes(gateway)
    app = Starlette(
        routes=[
            Route("/health", routes.health, methods=["GET"]),
            Route("/version", routes.version, methods=["GET"]),
            Route("/metrics", routes.metrics, methods=["GET"]),
            Route("/v1/models", routes.models, methods=["GET"]),
            Route("/v1/models/{name:path}", routes.model, methods=["GET"]),
            Route("/v1/chat/completions", ChatCompletions(gateway), methods=["POST"]),
        ],
        middleware=[Middleware(RequestMiddleware, gateway=gateway)],
        exception_handlers={HTTPException: _raise_api_error},
    )
    # Starlette would answer `/health/` with a redirect to wherever the Host header points.
    app.router.redirect_slashes = False
    return app


class _SimpleRoutes:
    """The routes that answer at once."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def health(self, request: Request) -> Response:
        record_of(request.scope).route = "/health"
        return Response(status_code=200)

    async def version(self, request: Request) -> Response:
        record_of(request.scope).route = "/version"
        return _json({"version": _version()})

    async def metrics(self, request: Request) -> Response:
        record_of(request.scope).route = "/metrics"
        return Response(self._gateway.render_metrics(), headers={"content-type": CONTENT_TYPE})

    async def models(self, request: Request) -> Response:
        record_of(request.scope).route = "/v1/models"
        data = [self._model(name) for name in self._gateway.dispatchers]
        return _json({"object": "list", "data": data})

    async def model(self, request: Request) -> Response:
        record_of(request.scope).route = "/v1/models/{name}"
        name: str = request.path_params["name"]
        return _json(self._model(self._gateway.dispatcher_of(name).model))

    def _model(self, name: str) -> dict[str, Any]:
        card = self._gateway.dispatchers[name].card
        created_s = 0 if card is None else card.created_s
        return model_object(name=name, created_s=created_s, is_ready=card is not None)


def _json(value: dict[str, Any]) -> Response:
    return Response(orjson.dumps(value), media_type="application/json")


async def _raise_api_error(request: Request, error: Exception) -> NoReturn:
    """Starlette's own errors, in OpenAI's shape: ``app.middleware`` answers them."""
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        raise MethodNotAllowedError(
            f"The method {request.method} is not allowed here.", headers=dict(error.headers or {})
        )
    raise NotFoundError(f"There is nothing at {request.url.path[:200]}.")


def _version() -> str:
    try:
        return version("headwater")
    except PackageNotFoundError:  # run from a checkout that was not installed
        return "0+unknown"
