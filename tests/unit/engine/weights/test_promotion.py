import asyncio
import glob
import hashlib
import os
from pathlib import Path

import msgspec
import pytest

from cache_tiers.rung import Rung
from cache_tiers.weights.errors import NoRoom, OriginFailed, WrongWeights
from engine.checkpoints.manifest import Manifest
from engine.checkpoints.pull import pull
from engine.checkpoints.store import checkpoint_path, open_checkpoint
from engine.weights.promotion import Promotion
from tests.checkpoint_hashes import verify
from tests.unit.engine.weights.parts import MODEL, FakeOrigin, Node, Tiny, make_node, make_tiny


@pytest.fixture
def tiny(tmp_path: Path) -> Tiny:
    return make_tiny(tmp_path)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return make_node(tmp_path)


def flipped(content: bytes) -> bytes:
    return bytes([content[0] ^ 1]) + content[1:]


async def test_a_copy_on_the_disk_is_staged_without_asking_anybody(tiny: Tiny, node: Node) -> None:
    pull(str(tiny.source), name=MODEL, home=node.home)
    peer = FakeOrigin(tiny.manifest, tiny.contents)
    promoted = await Promotion(tiny.order(), node.place).run([peer])

    assert (promoted.rung, promoted.origin, peer.num_asked) == (Rung.STAGED, "disk", 0)
    verify(open_checkpoint(Path(promoted.copy.folder)))
    assert [stage.name for stage in promoted.stages] == [
        "read from disk",
        "hash to the end",
        "seal and link",
    ]


async def test_who_opens_a_staged_folder_hashes_nothing(tiny: Tiny, node: Node) -> None:
    promoted = await Promotion(tiny.order(), node.place).run(
        [FakeOrigin(tiny.manifest, tiny.contents)]
    )
    folder = Path(promoted.copy.folder)
    manifest = open_checkpoint(folder).manifest
    times_ns = {name: (folder / name).stat().st_mtime_ns for name in manifest.files}
    assert times_ns == {name: entry.mtime_ns for name, entry in manifest.files.items()}


async def test_the_next_place_is_asked_when_one_fails(tiny: Tiny, node: Node) -> None:
    first = FakeOrigin(tiny.manifest, tiny.contents, failure=OriginFailed("it died"))
    second = FakeOrigin(tiny.manifest, tiny.contents, kind="source")
    promotion = Promotion(tiny.order(), node.place)
    promoted = await promotion.run([first, second])

    assert (promoted.rung, promoted.origin) == (Rung.STAGED, "source")
    assert promotion.failed_origins == ["peer"]
    verify(open_checkpoint(Path(promoted.copy.folder)))
    assert node.memory.used_bytes == promoted.copy.num_bytes


async def test_what_was_wrong_with_each_place_is_one_line(tiny: Tiny, node: Node) -> None:
    places = [
        FakeOrigin(tiny.manifest, tiny.contents, failure=OriginFailed("it died")),
        FakeOrigin(tiny.manifest, tiny.contents, kind="source", failure=OriginFailed("no bucket")),
    ]
    with pytest.raises(OriginFailed, match=r"^from other nodes: it died; from the source: no b"):
        await Promotion(tiny.order(), node.place).run(places)
    assert node.memory.used_bytes == 0
    assert not list((node.home.parent / "node").rglob("headwater.json"))


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
@pytest.mark.parametrize("rung", [Rung.STAGED, Rung.ON_DISK])
async def test_a_flipped_bit_is_never_let_in(tiny: Tiny, node: Node, name: str, rung: Rung) -> None:
    bad = {**tiny.contents, name: flipped(tiny.contents[name])}
    with pytest.raises(OriginFailed, match=f"{name} has sha256"):
        await Promotion(tiny.order(rung), node.place).run([FakeOrigin(tiny.manifest, bad)])
    assert node.memory.used_bytes == 0
    assert not checkpoint_path(node.home, MODEL).exists()


async def test_a_missing_file_is_noticed(tiny: Tiny, node: Node) -> None:
    bad = {name: content for name, content in tiny.contents.items() if name != "config.json"}
    with pytest.raises(OriginFailed, match=r"config\.json is missing"):
        await Promotion(tiny.order(), node.place).run([FakeOrigin(tiny.manifest, bad)])


@pytest.mark.parametrize(
    "name", ["../model.safetensors", ".bashrc", "evil.py", "packed-.so", "/etc/passwd"]
)
@pytest.mark.parametrize("rung", [Rung.STAGED, Rung.ON_DISK])
async def test_a_file_that_no_model_has_is_not_taken(
    tiny: Tiny, node: Node, tmp_path: Path, name: str, rung: Rung
) -> None:
    content = b"x" * 100
    bad = {**tiny.contents, name: content}
    digests = {name: hashlib.sha256(content).hexdigest()}
    peer = FakeOrigin(tiny.manifest, bad, sha256s=digests)
    with pytest.raises(OriginFailed, match=r"no name for a file|none of its manifest"):
        await Promotion(tiny.order(rung), node.place).run([peer])
    assert not glob.glob(f"{tmp_path}/**/evil.py", recursive=True, include_hidden=True)


async def test_packed_weights_come_along(tiny: Tiny, node: Node) -> None:
    name, content = "packed-bfloat16-0-of-1.weights", b"packed" * 1000
    digests = {name: hashlib.sha256(content).hexdigest()}
    peer = FakeOrigin(tiny.manifest, {**tiny.contents, name: content}, sha256s=digests)
    promoted = await Promotion(tiny.order(), node.place).run([peer])
    assert (Path(promoted.copy.folder) / name).read_bytes() == content

    bad = FakeOrigin(tiny.manifest, {**tiny.contents, name: flipped(content)}, sha256s=digests)
    with pytest.raises(OriginFailed, match=name):
        await Promotion(tiny.order(), node.place).run([bad])


async def test_a_manifest_that_lies_about_its_weights_is_refused(tiny: Tiny, node: Node) -> None:
    manifest = msgspec.json.decode(tiny.manifest, type=Manifest)
    lie = msgspec.json.encode(msgspec.structs.replace(manifest, weights_sha256="0" * 64))
    order = msgspec.structs.replace(tiny.order(), weights_sha256="0" * 64)
    with pytest.raises(OriginFailed, match="weights_sha256"):
        await Promotion(order, node.place).run([FakeOrigin(lie, tiny.contents)])


@pytest.mark.parametrize("pin", ["weights_sha256", "source_sha256"])
async def test_a_peer_with_other_weights_is_passed_by_and_such_a_source_ends_it(
    tiny: Tiny, node: Node, pin: str
) -> None:
    order = msgspec.structs.replace(tiny.order(), **{pin: "0" * 64})
    peer = FakeOrigin(tiny.manifest, tiny.contents)
    source = FakeOrigin(tiny.manifest, tiny.contents, kind="source", hashes=False)
    with pytest.raises(WrongWeights, match=pin):
        await Promotion(order, node.place).run([peer, source])
    assert (peer.num_asked, source.num_asked) == (1, 1)
    assert node.memory.used_bytes == 0


async def test_without_memory_it_goes_to_the_disk(tiny: Tiny, tmp_path: Path) -> None:
    node = make_node(tmp_path, host_bytes=0)
    peer = FakeOrigin(tiny.manifest, tiny.contents)
    promoted = await Promotion(tiny.order(), node.place).run([peer])

    assert (promoted.rung, promoted.origin) == (Rung.ON_DISK, "peer")
    assert isinstance(promoted.failure, NoRoom)
    checkpoint = open_checkpoint(checkpoint_path(node.home, MODEL))
    assert checkpoint.manifest == tiny.checkpoint.manifest
    verify(checkpoint)


async def test_a_copy_on_the_disk_that_lies_is_never_opened_again(tiny: Tiny, node: Node) -> None:
    stored = pull(str(tiny.source), name=MODEL, home=node.home)
    path = stored.weights_paths[0]
    before = path.stat()
    path.write_bytes(flipped(path.read_bytes()))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    peer = FakeOrigin(tiny.manifest, tiny.contents)
    promoted = await Promotion(tiny.order(), node.place).run([peer])

    assert promoted.origin == "peer"
    verify(open_checkpoint(Path(promoted.copy.folder)))
    assert await asyncio.to_thread(node.disk.open, tiny.order()) is None


async def test_an_older_copy_than_the_source_is_passed_by(tiny: Tiny, node: Node) -> None:
    pull(str(tiny.source), name=MODEL, home=node.home)
    (tiny.source / "generation_config.json").write_text('{"eos_token_id": 2}')
    source = FakeOrigin(tiny.manifest, tiny.contents, kind="source")
    promoted = await Promotion(tiny.order(), node.place).run([source])
    assert promoted.origin == "source"


async def test_breaking_it_off_leaves_nothing(tiny: Tiny, node: Node) -> None:
    peer = FakeOrigin(tiny.manifest, tiny.contents, gate=asyncio.Event())
    promotion = Promotion(tiny.order(), node.place)
    running = asyncio.create_task(promotion.run([peer]))
    await peer.has_begun.wait()
    assert 0 < promotion.num_done_bytes < promotion.num_bytes
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert node.memory.used_bytes == 0


async def test_what_arrives_is_lent_before_it_is_whole(tiny: Tiny, node: Node) -> None:
    gate = asyncio.Event()
    peer = FakeOrigin(tiny.manifest, tiny.contents, gate=gate)
    promotion = Promotion(tiny.order(), node.place)
    assert not promotion.lent.files
    running = asyncio.create_task(promotion.run([peer]))
    await peer.has_begun.wait()
    lent = promotion.lent
    assert (lent.stamp, lent.manifest, len(lent.files)) == (
        "stamp",
        tiny.manifest,
        len(tiny.contents),
    )
    gate.set()
    await running
    assert promotion.staged is not None
    assert promotion.staged.lent == promotion.lent
