"""The gateway without its HTTP: models, their engines, queues, tokenizers and metrics, and how they
change.

Lives on one event loop. Discovery calls ``set_engines``, configuration ``reconfigure``;
``app.server`` puts the routes on it.
"""

import asyncio
import secrets
import time
from collections.abc import Mapping

from app.authentication import Authenticator
from app.autoscaling_messages import DemandReport, ScaleOrders
from app.channel import connect_engine
from app.config import GatewayConfig
from app.dispatch import Dispatcher
from app.errors import ModelNotFoundError
from app.membership import ConnectEngine, EngineAddress, Membership
from app.metrics import Metrics
from app.routing.policy import POLICIES, PolicyName
from app.text.tokenization import TokenizerCache


class Gateway:
    """One gateway process."""

    def __init__(
        self,
        config: GatewayConfig,
        *,
        connect: ConnectEngine = connect_engine,
        policy: PolicyName = "least_ttft",
        rank: int = 0,
    ) -> None:
        """``rank``: of this process among the gateways of all replicas: 0, 1, … of those that
        serve requests, -1, -2, … of routers that stand alone.
        """
        self.tokenizers = TokenizerCache()
        self.metrics = Metrics()
        self._gateway_id = secrets.token_hex(8)
        self._connect = connect
        self._policy = POLICIES[policy]
        self._rank = rank
        self._dispatchers: dict[str, Dispatcher] = {}
        self._memberships: dict[str, Membership] = {}
        self.reconfigure(config)

    def reconfigure(self, config: GatewayConfig) -> None:
        """Take ``config`` from now on; running requests keep what they began with.

        A model that is not listed any more is unknown to new requests, and its engines are let go
        when what runs there has ended.
        """
        self.config = config
        self.authenticator = Authenticator(config.api_keys, config.admin_keys)
        self._model_of = {
            name: route.name for route in config.models for name in (route.name, *route.aliases)
        }
        for dispatcher in self._dispatchers.values():
            dispatcher.reconfigure(config)
        for route in config.models:
            self._dispatcher(route.name)
        configured = {route.name for route in config.models}
        for model, membership in self._memberships.items():
            if model in configured:
                membership.reconfigure()
            else:
                membership.set_addresses({})

    def set_engines(
        self,
        model: str,
        addresses: Mapping[str, EngineAddress],
        num_gateways: int | None = None,
    ) -> None:
        """The replicas that serve ``model`` now, by engine id; connected in the background.

        ``num_gateways``: see ``Membership.set_addresses``.
        """
        membership = self._memberships.get(model)
        if membership is None:
            membership = Membership(self._dispatcher(model), self._connect, self.tokenizers.prepare)
            self._memberships[model] = membership
        membership.set_addresses(addresses, num_gateways)

    def dispatcher_of(self, name: str) -> Dispatcher:
        """By the name or an alias that a client sent. Raises ``ModelNotFoundError``."""
        model = self._model_of.get(name)
        if model is None:
            raise ModelNotFoundError(name)
        return self._dispatchers[model]

    @property
    def dispatchers(self) -> dict[str, Dispatcher]:
        """Of the configured models, in their order."""
        return {route.name: self._dispatchers[route.name] for route in self.config.models}

    def endpoint_of(self, model: str, engine_id: str) -> str | None:
        """Where an engine of a configured model listens; None if it has just gone."""
        address = self._memberships[model].address_of(engine_id)
        return None if address is None else str(address.endpoint)

    def demand_report(self) -> DemandReport:
        """What the autoscaler is to know of the configured models."""
        return DemandReport(
            self._gateway_id,
            time.monotonic(),
            tuple(dispatcher.demand() for dispatcher in self.dispatchers.values()),
        )

    def take_orders(self, orders: ScaleOrders) -> None:
        """What the autoscaler wants of the engines; models that are not served here are ignored."""
        for model_orders in orders.models:
            dispatcher = self._dispatchers.get(model_orders.model)
            if dispatcher is not None:
                dispatcher.engines.take_orders(model_orders, orders.epoch, orders.sequence)

    def render_metrics(self) -> bytes:
        return self.metrics.render(self._dispatchers)

    async def close(self) -> None:
        """Stop dialling and close every connection; open requests end with an error."""
        await asyncio.gather(*(membership.close() for membership in self._memberships.values()))
        await asyncio.gather(*(dispatcher.close() for dispatcher in self._dispatchers.values()))

    def _dispatcher(self, model: str) -> Dispatcher:
        dispatcher = self._dispatchers.get(model)
        if dispatcher is None:
            dispatcher = self._dispatchers[model] = Dispatcher(
                model, self.config, policy=self._policy, rank=self._rank
            )
        return dispatcher
