"""The engines of one model as they come, sleep, wake and go, and what they say meanwhile.

Tells the fleet, the seeder, and those that wait. Must not know how requests run, nor where engines
are found.
"""

import asyncio
from collections import Counter

from app.autoscaling_messages import ModelOrders
from app.client import EngineClient
from app.fleet import Fleet
from app.member import Member
from app.readiness import Readiness
from app.scale_orders import LastOrders
from app.seeder import Seeder
from app.waiting import WaitingRoom
from engine.messages import CacheEvents, CacheSnapshot


class Engines:
    """Owner of the connections. Implements ``app.client.EngineListener``."""

    def __init__(
        self,
        fleet: Fleet,
        readiness: Readiness,
        waiting: WaitingRoom,
        seeder: Seeder,
        orders: LastOrders,
    ) -> None:
        self._fleet = fleet
        self._readiness = readiness
        self._waiting = waiting
        self._seeder = seeder
        self._orders = orders
        self._closing: set[asyncio.Task[None]] = set()

    def take_orders(self, orders: ModelOrders, epoch: int, sequence: int) -> None:
        """What the autoscaler wants; orders that come late change nothing."""
        if self._orders.take(orders, epoch, sequence):
            for member in self._fleet:
                member.obey(self._orders.rung_order(member.engine_id))
            self._readiness.note_orders()

    def add(self, client: EngineClient) -> Member:
        """``client`` takes requests from now on, those that wait for any engine first; or when it
        has what there is to seed.
        """
        member = Member(client)
        self._fleet.add(member)
        member.is_awake = client.is_accepting
        member.obey(self._orders.rung_order(member.engine_id))
        self._seeder.begin(member, has_snapshot=False)
        self.count_in()
        return member

    def reinstate(self, engine_id: str) -> Member | None:
        """Use an engine again that was retired, if it is still connected."""
        member = self._fleet.get(engine_id)
        if member is not None:
            member.is_retiring = False
            self._note_change()
        return member

    def retire(self, engine_id: str) -> None:
        """Send it nothing more; its connection closes when its running requests have ended."""
        member = self._fleet.get(engine_id)
        if member is not None:
            member.is_retiring = True
            self._seeder.forget(member)
            self._pass_over(member)
            member.announce_demand((0, 0, 0))
            self.close_if_done(member)

    def count_in(self) -> None:
        """Another one may take requests now."""
        self._note_change()
        self._waiting.rechoose(None)

    def close_if_done(self, member: Member) -> None:
        """Let ``member`` go if it is retired and nothing runs there."""
        is_present = self._fleet.get(member.engine_id) is member
        if member.is_retiring and not member.running and is_present:
            self._close_soon(member)

    async def close(self) -> None:
        """Close every connection; open requests end with an error."""
        for member in self._fleet:
            member.is_retiring = True
            self._close_soon(member)
        await asyncio.gather(*self._closing)

    # What engines say.

    def on_credits(self, client: EngineClient) -> None:
        member = self._fleet.member_of(client)
        if member is not None:
            self._waiting.use_credits(member)
            self._seeder.use_credits(member)

    def on_step(self, client: EngineClient, events: CacheEvents | None) -> None:
        member = self._fleet.member_of(client)
        if member is not None:
            self._fleet.see_step(member, events)

    def on_snapshot(self, client: EngineClient, snapshot: CacheSnapshot) -> None:
        member = self._fleet.member_of(client)
        if member is not None:
            self._fleet.see_snapshot(member, snapshot)
            if snapshot.is_last and not self._fleet.index.is_behind(member.engine_id):
                self._seeder.see_snapshot(member)

    def on_draining(self, client: EngineClient) -> None:
        member = self._fleet.member_of(client)
        if member is not None:
            was_awake, member.is_awake = member.is_awake, False
            self._stop_using(member, is_warm=was_awake)

    def on_rung(self, client: EngineClient) -> None:
        member = self._fleet.member_of(client)
        if member is None:
            return
        was_awake, member.is_awake = member.is_awake, client.is_accepting
        if member.is_awake and not was_awake:
            self._seeder.begin(member, has_snapshot=True)
            self.count_in()
            self._waiting.use_credits(member)
        else:
            self._stop_using(member, is_warm=was_awake)

    def on_closed(self, client: EngineClient, reason: str) -> None:
        member = self._fleet.member_of(client)
        if member is None:
            return
        self._fleet.remove(member.engine_id)
        self._seeder.forget(member)
        self._pass_over(member)
        assert not member.running, f"{member.engine_id} closed without ending its requests"
        member.closed.set()

    def _stop_using(self, member: Member, *, is_warm: bool) -> None:
        """It takes no requests for now; ``is_warm``: until now it did."""
        if member.is_awake:
            return  # nothing new
        self._seeder.forget(member)
        if is_warm:
            self._seeder.rescue(member)
        self._pass_over(member)

    def _pass_over(self, member: Member) -> None:
        """Who waits for it is to wait for another one."""
        self._note_change()
        self._seeder.look()
        self._waiting.rechoose(member.engine_id)

    def _note_change(self) -> None:
        """Others take requests than before."""
        self._readiness.note_change()
        num_alike = Counter(m.client.card.root_key for m in self._fleet if m.is_accepting)
        for member in self._fleet:
            num_others = num_alike[member.client.card.root_key] - member.is_accepting
            member.tell_successor(exists=num_others > 0)

    def _close_soon(self, member: Member) -> None:
        task = asyncio.create_task(member.client.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
