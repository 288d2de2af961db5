"""Connections follow what discovery says."""

import asyncio

import pytest

from app.client import EngineClient, EngineListener
from app.config import GatewayConfig
from app.dispatch import Dispatcher
from app.errors import ModelLoadingError
from app.membership import ConnectError, EngineAddress, Membership, PrepareCard
from app.routing.cells import MAX_CELL_REPLICAS, assign_cells
from engine.messages import ModelCard
from tests.unit.app.fakes import FakeEngine, address_of, until


class Network:
    """Engines that can be reached, and how often it was tried."""

    def __init__(self, *engine_ids: str) -> None:
        self.reachable = {engine_id: FakeEngine(engine_id) for engine_id in engine_ids}
        self.num_dials: dict[str, int] = {}

    async def connect(
        self, address: EngineAddress, listener: EngineListener, prepare: PrepareCard
    ) -> EngineClient:
        engine_id = address.engine_id
        self.num_dials[engine_id] = self.num_dials.get(engine_id, 0) + 1
        await asyncio.sleep(0)
        if engine_id not in self.reachable:
            raise ConnectError("nobody listens")
        engine = self.reachable[engine_id]
        engine.listener = listener
        return engine


async def unprepared(card: ModelCard) -> ModelCard:
    return card


def start(network: Network) -> tuple[Membership, Dispatcher]:
    dispatcher = Dispatcher("m", GatewayConfig())
    return Membership(dispatcher, network.connect, unprepared), dispatcher


def ids(dispatcher: Dispatcher) -> set[str]:
    return {member.engine_id for member in dispatcher.fleet}


def addresses(*engine_ids: str) -> dict[str, EngineAddress]:
    return {engine_id: address_of(engine_id) for engine_id in engine_ids}


async def test_it_connects_what_comes_and_lets_go_what_leaves() -> None:
    membership, dispatcher = start(Network("a", "b", "c"))
    membership.set_addresses(addresses("a", "b"))
    await until(lambda: ids(dispatcher) == {"a", "b"})
    membership.set_addresses(addresses("b", "c"))
    await until(lambda: ids(dispatcher) == {"b", "c"})
    await membership.close()
    await dispatcher.close()
    assert not ids(dispatcher)


async def test_a_request_waits_a_moment_for_a_first_engine() -> None:
    network = Network()
    membership, dispatcher = start(network)
    membership.set_addresses(addresses("a"))
    card = asyncio.create_task(dispatcher.ready_card())
    await until(lambda: network.num_dials.get("a") == 1)
    assert not card.done()
    network.reachable["a"] = FakeEngine("a")
    assert (await card).engine_id == "a"
    await membership.close()


async def test_without_an_address_or_in_time_the_model_is_loading() -> None:
    dispatcher = Dispatcher("m", GatewayConfig(), max_connecting_s=0.01)
    membership = Membership(dispatcher, Network().connect, unprepared)
    for named in ({}, addresses("a"), {}):
        membership.set_addresses(named)
        with pytest.raises(ModelLoadingError):
            await dispatcher.ready_card()
    await membership.close()


async def test_an_engine_that_cannot_be_reached_is_dialled_again() -> None:
    network = Network()
    membership, dispatcher = start(network)
    membership.set_addresses(addresses("a"))
    await until(lambda: network.num_dials.get("a") == 1)
    network.reachable["a"] = FakeEngine("a")
    await until(lambda: ids(dispatcher) == {"a"})
    await membership.close()


async def test_a_lost_connection_is_dialled_again() -> None:
    network = Network("a")
    membership, dispatcher = start(network)
    membership.set_addresses(addresses("a"))
    await until(lambda: ids(dispatcher) == {"a"})
    lost = network.reachable["a"]
    network.reachable["a"] = FakeEngine("a")
    lost.lose()
    await until(lambda: ids(dispatcher) == {"a"})
    assert dispatcher.card is not None
    await membership.close()


async def test_an_engine_that_discovery_drops_for_a_moment_is_kept() -> None:
    network = Network("a")
    membership, dispatcher = start(network)
    membership.set_addresses(addresses("a"))
    await until(lambda: ids(dispatcher) == {"a"})
    (member,) = dispatcher.fleet
    member.running["r"] = None  # type: ignore[assignment]
    membership.set_addresses({})
    assert dispatcher.card is None
    membership.set_addresses(addresses("a"))
    await until(lambda: dispatcher.card is not None)
    assert network.num_dials == {"a": 1}
    await membership.close()


async def test_nothing_is_dialled_after_it_closed() -> None:
    network = Network()
    membership, _ = start(network)
    membership.set_addresses(addresses("a"))
    await until(lambda: network.num_dials.get("a") == 1)
    await membership.close()
    await asyncio.sleep(0.15)
    assert network.num_dials == {"a": 1}


async def _connected_of(rank: int, names: list[str]) -> set[str]:
    """To which the gateway of that rank connects, if it serves one cell."""
    dispatcher = Dispatcher("m", GatewayConfig(cells_per_gateway=1), rank=rank)
    network = Network(*names)
    membership = Membership(dispatcher, network.connect, unprepared)
    membership.set_addresses(addresses(*names))
    await until(lambda: network.num_dials)
    await until(lambda: ids(dispatcher) == set(network.num_dials))
    connected = ids(dispatcher)
    await membership.close()
    await dispatcher.close()
    return connected


async def test_a_gateway_connects_to_its_own_cells_only() -> None:
    names = [f"e{number}" for number in range(3 * MAX_CELL_REPLICAS)]
    num_cells = len(assign_cells(names))
    connected = [await _connected_of(rank, names) for rank in range(num_cells)]
    assert num_cells > 1
    assert set().union(*connected) == set(names)
    assert sum(map(len, connected)) == len(names)
    assert max(map(len, connected)) <= MAX_CELL_REPLICAS


async def test_replicas_that_no_gateway_reaches_are_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    names = [f"e{number}" for number in range(2 * MAX_CELL_REPLICAS)]
    num_cells = len(assign_cells(names))
    dispatcher = Dispatcher("m", GatewayConfig(cells_per_gateway=1))
    membership = Membership(dispatcher, Network().connect, unprepared)
    membership.set_addresses(addresses(*names))
    membership.set_addresses(addresses(*names), num_cells)
    assert not warnings(caplog)
    membership.set_addresses(addresses(*names), num_cells - 1)
    assert "replicas of 1 cells" in warnings(caplog)[0]
    dispatcher.reconfigure(GatewayConfig(cells_per_gateway=2))
    membership.reconfigure()
    assert len(warnings(caplog)) == 1
    await membership.close()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    messages = [record.getMessage() for record in caplog.records]
    return [message for message in messages if "cells_per_gateway" in message]


async def test_a_gateway_that_is_to_serve_more_cells_dials_them_at_once() -> None:
    names = [f"e{number}" for number in range(2 * MAX_CELL_REPLICAS)]
    dispatcher = Dispatcher("m", GatewayConfig(cells_per_gateway=1))
    network = Network(*names)
    membership = Membership(dispatcher, network.connect, unprepared)
    membership.set_addresses(addresses(*names))
    await until(lambda: network.num_dials)
    await until(lambda: ids(dispatcher) == set(network.num_dials))
    assert len(ids(dispatcher)) < len(names)
    dispatcher.reconfigure(GatewayConfig())
    membership.reconfigure()
    await until(lambda: ids(dispatcher) == set(names))
    await membership.close()
    await dispatcher.close()
