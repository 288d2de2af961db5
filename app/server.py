"""The gateway's routes as one ASGI application."""

from collections.abc import Sequence
from typing import Any, NoReturn

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from app.answers.openai_objects import model_object
from app.chat_completions import ChatCompletions
from app.completions import Completions
from app.debug_routes import DebugRoutes
from app.errors import MethodNotAllowedError, NotFoundError
from app.fleet_metrics import Alone, FleetMetrics
from app.gateway import Gateway
from app.metrics_routes import MetricsRoutes
from app.middleware import RequestMiddleware
from app.profile_route import ProfileRoute
from app.record import record_of
from app.requests.openapi import openapi_document, router_document
from app.route_route import RouteRoute
from app.tokenize_routes import DetokenizeRoute, TokenizeRoute
from app.version import package_version


def create_asgi_app(gateway: Gateway, metrics: FleetMetrics | None = None) -> Starlette:
    """Serves ``gateway``, which the caller owns and closes.

    ``metrics``: of the fleet; without, the gateway knows of no other replica.
    """
    debug = DebugRoutes(gateway)
    chat, text = ChatCompletions(gateway), Completions(gateway)
    tokenize, detokenize = TokenizeRoute(gateway), DetokenizeRoute(gateway)
    routes = [
        *_common_routes(gateway, metrics, openapi_document()),
        Route("/debug/steps", debug.steps, methods=["GET"]),
        Route("/debug/requests/{request_id}", debug.request, methods=["GET"]),
        Route("/debug/profile", ProfileRoute(gateway), methods=["POST"]),
        *_either("/chat/completions", chat, "POST"),
        *_either("/completions", text, "POST"),
        *_either("/tokenize", tokenize, "POST"),
        *_either("/detokenize", detokenize, "POST"),
    ]
    return _app(gateway, routes)


def create_router_app(gateway: Gateway, metrics: FleetMetrics | None = None) -> Starlette:
    """As ``create_asgi_app``, for a process that only says where requests should go."""
    routes = [
        *_common_routes(gateway, metrics, router_document()),
        *_either("/route", RouteRoute(gateway), "POST"),
    ]
    return _app(gateway, routes)


def _common_routes(gateway: Gateway, metrics: FleetMetrics | None, document: bytes) -> list[Route]:
    simple = _SimpleRoutes(gateway, document)
    metrics_routes = MetricsRoutes(metrics or FleetMetrics("", gateway.render_metrics, Alone()))
    return [
        Route("/health", simple.health, methods=["GET"]),
        Route("/version", simple.version, methods=["GET"]),
        Route("/metrics", metrics_routes.page, methods=["GET"]),
        Route("/metrics/targets", metrics_routes.targets, methods=["GET"]),
        Route("/openapi.json", simple.openapi, methods=["GET"]),
        *_either("/models", simple.models, "GET"),
        *_either("/models/{name:path}", simple.model, "GET"),
    ]


def _app(gateway: Gateway, routes: Sequence[Route]) -> Starlette:
    app = Starlette(
        routes=routes,
        middleware=[Middleware(RequestMiddleware, gateway=gateway)],
        exception_handlers={HTTPException: _raise_api_error},
    )
    # Starlette would answer `/health/` with a redirect to wherever the Host header points.
    app.router.redirect_slashes = False
    return app


def _either(path: str, endpoint: Any, method: str) -> list[Route]:
    """Under ``/v1`` and bare, as some clients ask."""
    return [Route(prefix + path, endpoint, methods=[method]) for prefix in ("/v1", "")]


class _SimpleRoutes:
    """The routes that answer at once."""

    def __init__(self, gateway: Gateway, document: bytes) -> None:
        self._gateway = gateway
        self._document = document

    async def health(self, request: Request) -> Response:
        record_of(request.scope).route = "/health"
        return Response(status_code=200)

    async def version(self, request: Request) -> Response:
        record_of(request.scope).route = "/version"
        return _json({"version": package_version()})

    async def openapi(self, request: Request) -> Response:
        record_of(request.scope).route = "/openapi.json"
        return Response(self._document, media_type="application/json")

    async def models(self, request: Request) -> Response:
        record_of(request.scope).route = "/v1/models"
        data = [self._model(name) for name in self._gateway.dispatchers]
        return _json({"object": "list", "data": data})

    async def model(self, request: Request) -> Response:
        record_of(request.scope).route = "/v1/models/{name}"
        name: str = request.path_params["name"]
        return _json(self._model(self._gateway.dispatcher_of(name).model))

    def _model(self, name: str) -> dict[str, Any]:
        return model_object(name=name, card=self._gateway.dispatchers[name].card)


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
