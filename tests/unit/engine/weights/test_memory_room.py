from pathlib import Path

import pytest

from cache_tiers.rung import Rung
from cache_tiers.weights.errors import NoRoom
from cache_tiers.weights.host_memory import HostMemory
from cache_tiers.weights.messages import WeightFile, WeightsOrder
from engine.checkpoints.manifest import FileEntry, Manifest
from engine.weights.memory_room import MemoryRoom
from engine.weights.model_on_node import ModelOnNode, Promoted
from engine.weights.staged_models import StagedModels
from engine.weights.weights_counts import WeightsCounts

MIB = 1 << 20


class Room:
    """A node with 100 MiB for weights."""

    def __init__(self, folder: Path) -> None:
        self.models: dict[str, ModelOnNode] = {}
        self.available_bytes = 1 << 40
        self.now_s = 0.0
        self.memory = HostMemory(100 * MIB, available_bytes=lambda: self.available_bytes)
        self.staged = StagedModels(folder / "weights", self.memory, home=folder / "home")
        self.counts = WeightsCounts()
        self.room = MemoryRoom(
            self.memory, self.staged, self.models, self.counts, lambda: self.now_s
        )

    def wanting(self, name: str, rung: Rung = Rung.STAGED, used_s: float = 0.0) -> ModelOnNode:
        model = self.models.setdefault(name, ModelOnNode(name))
        model.give(WeightsOrder(name, "source", rung), used_s)
        model.used_s = used_s
        return model

    def stage(
        self, name: str, rung: Rung = Rung.STAGED, *, used_s: float = 0.0, packed_mib: int = 0
    ) -> ModelOnNode:
        """A model of 40 MiB, and what ranks have packed of it."""
        model = self.wanting(name, Rung.STAGED, used_s)
        sizes_mib = {"model.safetensors": 40, "packed-x.weights": packed_mib}
        wanted = [WeightFile(each, mib * MIB) for each, mib in sizes_mib.items() if mib]
        files = self.room.make(model, wanted)
        for file in files:
            file.mark_until(file.file.num_bytes)
        entries = {"model.safetensors": FileEntry(40 * MIB, "aa")}
        manifest = Manifest("source", "55", "", entries, name * 16, 1)
        assert model.order is not None
        staged = self.staged.put(
            model.order, files, manifest=manifest, encoded=b"{}", stamp="stamp"
        )
        model.begin()
        model.succeed(Promoted(Rung.STAGED, staged.copy, "disk", ()), used_s)
        self.wanting(name, rung, used_s)
        return model

    def make(self, model: ModelOnNode, mib: int) -> None:
        self.room.make(model, [WeightFile("model.safetensors", mib * MIB)])

    @property
    def names(self) -> set[str]:
        return {name for name, model in self.models.items() if model.rung is Rung.STAGED}


@pytest.fixture
def room(tmp_path: Path) -> Room:
    return Room(tmp_path)


def test_the_longest_unused_of_those_that_nobody_wants_leaves(room: Room) -> None:
    room.stage("a", Rung.ON_DISK, used_s=2.0)
    room.stage("b", Rung.ON_DISK, used_s=1.0)
    room.make(room.wanting("c"), 50)
    assert room.names == {"a"}
    assert room.counts.num_evicted == 1


def test_what_was_ordered_long_ago_leaves_for_what_is_ordered_now(room: Room) -> None:
    room.stage("a")
    room.stage("b", used_s=601.0)
    room.now_s = 601.0
    room.make(room.wanting("c", used_s=601.0), 50)
    assert room.names == {"b"}


def test_the_lowest_wanted_rung_leaves_first(room: Room) -> None:
    room.stage("a", Rung.ON_DISK, used_s=1.0)
    room.stage("b", Rung.COLD, used_s=2.0)
    room.make(room.wanting("c"), 50)
    assert room.names == {"a"}


def test_what_is_ordered_stays_for_another_order_and_leaves_for_a_start(room: Room) -> None:
    room.stage("a")
    room.stage("b", used_s=1.0)
    other = room.wanting("c")
    with pytest.raises(NoRoom):
        room.make(other, 50)
    assert room.names == {"a", "b"}
    assert other.order is not None
    other.ask("start 1", other.order, 2.0)
    room.make(other, 50)
    assert room.names == {"b"}


def test_nothing_leaves_in_vain(room: Room) -> None:
    room.stage("a", Rung.COLD, packed_mib=10)
    room.stage("b").lease("replica", 10.0, 0.0)
    with pytest.raises(NoRoom, match="host_bytes"):
        room.make(room.wanting("c"), 70)
    assert room.names == {"a", "b"}
    assert room.memory.used_bytes == 90 * MIB


def test_nothing_leaves_in_vain_where_the_node_itself_is_short(room: Room) -> None:
    room.stage("a", Rung.COLD)
    room.stage("b", Rung.COLD)
    room.available_bytes = 10 * MIB
    with pytest.raises(NoRoom, match="don't fit"):
        room.make(room.wanting("c"), 95)
    assert room.names == {"a", "b"}


def test_what_is_leased_never_leaves(room: Room) -> None:
    room.stage("a", Rung.COLD).lease("replica", 10.0, 0.0)
    other = room.wanting("c")
    assert other.order is not None
    other.ask("start 1", other.order, 2.0)
    with pytest.raises(NoRoom):
        room.make(other, 70)
    assert room.names == {"a"}


def test_packed_weights_leave_before_any_model(room: Room) -> None:
    model = room.stage("a", packed_mib=40)
    model.lease("replica", 10.0, 0.0)
    room.make(room.wanting("c"), 50)
    assert room.names == {"a"}
    assert model.in_memory is not None
    folder = Path(model.in_memory.folder)
    assert (folder / "model.safetensors").exists()
    assert not (folder / "packed-x.weights").is_symlink()
    assert room.memory.used_bytes == 90 * MIB


def test_bytes_that_arrive_count(room: Room) -> None:
    room.stage("a", Rung.COLD)
    room.make(room.wanting("b"), 50)
    with pytest.raises(NoRoom):
        room.make(room.wanting("c"), 60)
    assert room.names == {"a"}
