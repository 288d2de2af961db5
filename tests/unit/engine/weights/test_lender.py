import shutil
from pathlib import Path

import msgspec
import pytest

from cache_tiers.rung import Rung
from cache_tiers.weights.chunk_messages import Ask
from engine.checkpoints.pull import pull
from engine.weights.lender import Lender
from engine.weights.model_on_node import ModelOnNode, Promoted
from engine.weights.promotion import Promotion
from tests.unit.engine.weights.parts import MODEL, FakeOrigin, Node, Tiny, make_node, make_tiny


@pytest.fixture
def tiny(tmp_path: Path) -> Tiny:
    return make_tiny(tmp_path)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return make_node(tmp_path)


async def promoted(tiny: Tiny, node: Node, rung: Rung) -> tuple[ModelOnNode, Promoted]:
    model = ModelOnNode(MODEL)
    model.give(tiny.order(rung), 0.0)
    model.begin()
    peer = FakeOrigin(tiny.manifest, tiny.contents)
    found = await Promotion(tiny.order(rung), node.place).run([peer])
    model.succeed(found, 0.0)
    return model, found


def ask(tiny: Tiny, **pins: str) -> Ask:
    return msgspec.structs.replace(Ask(MODEL, str(tiny.source)), **pins)


@pytest.mark.parametrize("rung", [Rung.STAGED, Rung.ON_DISK])
async def test_what_is_here_is_lent_whole(tiny: Tiny, node: Node, rung: Rung) -> None:
    model, _ = await promoted(tiny, node, rung)
    lender = Lender({MODEL: model}, {}, node.staged)
    lent = lender.lend(ask(tiny))
    assert lent is not None
    assert lent.manifest == tiny.manifest
    assert {file.file.name for file in lent.files} == set(tiny.contents)
    for file in lent.files:
        assert file.is_whole
        if file.file.num_bytes:
            file.digest(0)
    assert lender.lend(ask(tiny)) == lent
    assert lender.lend(ask(tiny, weights_sha256=tiny.checkpoint.revision)) == lent
    lender.close()


@pytest.mark.parametrize(
    "other", [{"model": "other"}, {"source": "s3://b/other"}, {"weights_sha256": "0" * 64}], ids=str
)
async def test_other_weights_are_not_lent(tiny: Tiny, node: Node, other: dict[str, str]) -> None:
    model, _ = await promoted(tiny, node, Rung.STAGED)
    assert Lender({MODEL: model}, {}, node.staged).lend(ask(tiny, **other)) is None


async def test_lending_a_file_leaves_its_time_as_it_is(tiny: Tiny, node: Node) -> None:
    stored = pull(str(tiny.source), name=MODEL, home=node.home)
    times_ns = [path.stat().st_mtime_ns for path in stored.weights_paths]
    model, _ = await promoted(tiny, node, Rung.ON_DISK)
    lender = Lender({MODEL: model}, {}, node.staged)
    assert lender.lend(ask(tiny)) is not None
    lender.forget(MODEL)
    assert [path.stat().st_mtime_ns for path in stored.weights_paths] == times_ns


async def test_what_is_on_its_way_is_lent_to_who_wants_the_same(tiny: Tiny, node: Node) -> None:
    model = ModelOnNode(MODEL)
    model.give(tiny.order(), 0.0)
    lender = Lender({MODEL: model}, {MODEL: Promotion(tiny.order(), node.place)}, node.staged)
    lent = lender.lend(ask(tiny))
    assert lent is not None
    assert not lent.files
    assert lender.lend(ask(tiny, weights_sha256="0" * 64)) is None
    assert lender.lend(ask(tiny, source="s3://b/other")) is None


async def test_files_that_are_gone_are_not_lent(tiny: Tiny, node: Node) -> None:
    model, found = await promoted(tiny, node, Rung.ON_DISK)
    shutil.rmtree(found.copy.folder)
    assert Lender({MODEL: model}, {}, node.staged).lend(ask(tiny)) is None
