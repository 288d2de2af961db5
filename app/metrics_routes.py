"""``/metrics``: the fleet's page, and where each replica has its own."""

from starlette.requests import Request
from starlette.responses import Response

from app.fleet_metrics import FleetMetrics
from app.metrics import CONTENT_TYPE
from app.record import record_of


class MetricsRoutes:
    """Both are answered from ``metrics``."""

    def __init__(self, metrics: FleetMetrics) -> None:
        self._metrics = metrics

    async def page(self, request: Request) -> Response:
        record_of(request.scope).route = "/metrics"
        return Response(await self._metrics.page(), headers={"content-type": CONTENT_TYPE})

    async def targets(self, request: Request) -> Response:
        record_of(request.scope).route = "/metrics/targets"
        return Response(await self._metrics.discovery(), media_type="application/json")
