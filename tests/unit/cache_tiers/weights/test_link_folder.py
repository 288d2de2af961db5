"""A staged model's folder."""

import json
import os
import resource
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from cache_tiers.weights.arriving_file import ArrivingFile
from cache_tiers.weights.errors import NoRoom, WrongWeights
from cache_tiers.weights.link_folder import LinkFolder
from cache_tiers.weights.messages import WeightFile

DEAD_PID = 2**22 + 1
"""Above what a kernel gives."""


def in_memory(name: str, content: bytes) -> ArrivingFile:
    file = ArrivingFile.in_memory(WeightFile(name, len(content)))
    if content:
        with file.chunk(0) as memory:
            memory[:] = content
        file.mark(0)
    file.seal()
    return file


@pytest.fixture
def weights() -> Iterator[ArrivingFile]:
    file = in_memory("model.safetensors", b"weights")
    yield file
    file.close()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "node" / "weights"


def make(links: LinkFolder, path: Path, weights: ArrivingFile) -> None:
    links.make(path, {"config.json": b"{}"}, {"model.safetensors": weights}, b"manifest")


def names(folder: Path) -> set[str]:
    return {each.name for each in folder.iterdir()}


def test_others_read_all_files_by_name(root: Path, weights: ArrivingFile) -> None:
    links = LinkFolder(root)
    path = root / "smol" / "abc"
    make(links, path, weights)
    assert (path / "config.json").read_bytes() == b"{}"
    assert (path / "model.safetensors").read_bytes() == b"weights"
    assert (path / "headwater.json").read_bytes() == b"manifest"
    assert os.readlink(path / "model.safetensors") == f"/proc/{os.getpid()}/fd/{weights.fd}"
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(root.stat().st_mode) == 0o700
    assert names(root / "smol") == {"abc"}
    assert links.is_sound(path)


def test_what_was_there_is_replaced(root: Path, weights: ArrivingFile) -> None:
    links = LinkFolder(root)
    path = root / "smol" / "abc"
    make(links, path, weights)
    (path / "extra").write_bytes(b"x")
    make(links, path, weights)
    assert not (path / "extra").exists()
    assert names(root / "smol") == {"abc"}


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../x", "a/b", "/etc/passwd", ".links", ".hidden", "a\0b", "x" * 256, "\ud800"],
)
def test_a_name_that_leads_elsewhere_is_refused(
    root: Path, weights: ArrivingFile, name: str
) -> None:
    links = LinkFolder(root)
    path = root / "smol" / "abc"
    with pytest.raises(WrongWeights, match="is no name for a file of a model"):
        links.make(path, {name: b""}, {}, b"")
    with pytest.raises(WrongWeights):
        links.make(path, {}, {name: weights}, b"")
    assert not path.exists()


@pytest.mark.parametrize("name", ["headwater.json", "model.safetensors"])
def test_two_files_of_one_name_are_refused(root: Path, weights: ArrivingFile, name: str) -> None:
    with pytest.raises(WrongWeights, match=f"two files of one name: {name}"):
        LinkFolder(root).make(root / "m" / "r", {name: b""}, {"model.safetensors": weights}, b"")


def test_a_folder_that_cannot_be_written_leaves_the_old_one(
    root: Path, weights: ArrivingFile
) -> None:
    links = LinkFolder(root)
    path = root / "smol" / "abc"
    make(links, path, weights)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(NoRoom, match="can't be made: File too large"):
            links.make(path, {"tokenizer.json": bytes(8192)}, {}, b"manifest")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    (root / "file").write_bytes(b"")
    with pytest.raises(NoRoom, match="can't be made"):
        make(links, root / "file" / "abc", weights)
    assert (path / "model.safetensors").read_bytes() == b"weights"
    assert names(root / "smol") == {"abc"}


def test_a_removed_folder_stays_with_whom_has_opened_its_files(
    root: Path, weights: ArrivingFile
) -> None:
    links = LinkFolder(root)
    path = root / "smol" / "abc"
    make(links, path, weights)
    with (path / "model.safetensors").open("rb") as opened:
        links.remove(path)
        links.remove(path)
        assert opened.read() == b"weights"
    assert names(root / "smol") == set()


def test_what_ranks_have_packed_is_found_and_becomes_a_link(
    root: Path, weights: ArrivingFile
) -> None:
    links = LinkFolder(root)
    path = root / "smol" / "abc"
    make(links, path, weights)
    packed = path / "packed-int8-0-of-1.weights"
    (path / ".packed-int8-0-of-1.weights.new-x").write_bytes(b"half")
    (path / "other.txt").write_bytes(b"")
    (path / "packed-dir.weights").mkdir()
    (path / "packed-link.weights").symlink_to("/etc/passwd")
    packed.write_bytes(b"packed")
    assert links.adopt_new(path) == [packed]
    file = in_memory(packed.name, b"packed")
    links.link(path, packed.name, file)
    assert links.adopt_new(path) == []
    assert packed.is_symlink()
    assert packed.read_bytes() == b"packed"
    assert links.is_sound(path)
    file.close()
    assert not links.is_sound(path)


def test_a_link_that_can_not_be_noted_is_not_made(root: Path, weights: ArrivingFile) -> None:
    links = LinkFolder(root)
    path = root / "smol" / "abc"
    make(links, path, weights)
    packed = path / "packed-int8-0-of-1.weights"
    packed.write_bytes(b"packed")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            links.link(path, packed.name, weights)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not packed.is_symlink()
    assert packed.read_bytes() == b"packed"
    assert links.is_sound(path)
    links.remove(path)
    with pytest.raises(FileNotFoundError, match="the model's folder is gone"):
        links.link(path, packed.name, weights)


def test_of_a_folder_that_is_gone_nothing_is_adopted(root: Path) -> None:
    assert LinkFolder(root).adopt_new(root / "smol" / "abc") == []


def test_folders_of_living_processes_stay(root: Path, weights: ArrivingFile) -> None:
    path = root / "org" / "smol" / "abc"
    make(LinkFolder(root), path, weights)
    (root / "org" / "smol" / ".compiled").mkdir()
    assert LinkFolder(root).remove_left_overs() == 0
    assert (path / "model.safetensors").read_bytes() == b"weights"
    assert (root / "org" / "smol" / ".compiled").is_dir()


@pytest.mark.parametrize(
    "change",
    [{"pid": DEAD_PID}, {"started": "1"}, {"pid": 1}, {"opens": {"gone": [1, 2, 3]}}, None],
)
def test_a_folder_whose_maker_is_not_who_it_was_is_removed(
    root: Path, weights: ArrivingFile, change: dict[str, object] | None
) -> None:
    path = root / "smol" / "abc"
    make(LinkFolder(root), path, weights)
    record = path / ".links"
    if change is None:
        record.write_bytes(b"{")
    else:
        record.write_bytes(json.dumps({**json.loads(record.read_bytes()), **change}).encode())
    LinkFolder(root)
    assert names(root / "smol") == set()


def test_a_number_that_opens_another_file_by_now_is_found_out(
    root: Path, weights: ArrivingFile
) -> None:
    path = root / "smol" / "abc"
    links = LinkFolder(root)
    make(links, path, weights)
    other = in_memory("other", b"another")  # of the same size
    os.dup2(other.fd, weights.fd)
    assert not links.is_sound(path)
    assert links.remove_left_overs() == 1
    other.close()


def test_half_made_folders_go_unless_their_maker_lives(root: Path) -> None:
    LinkFolder(root)
    stat_fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    mine = f".new-{os.getpid()}-{stat_fields[19]}-7"
    stale = [f".new-{DEAD_PID}-5-0", f".old-{os.getpid()}-1-0", ".new-", ".old-x-y-z"]
    for name in (mine, *stale):
        (root / "smol" / name).mkdir(parents=True)
        (root / "smol" / name / "config.json").write_bytes(b"")
    LinkFolder(root)
    assert names(root / "smol") == {mine}


def test_links_are_not_followed_when_left_overs_are_removed(root: Path, tmp_path: Path) -> None:
    LinkFolder(root)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_bytes(b"")
    dead = root / f".new-{DEAD_PID}-5-0"
    dead.mkdir()
    (dead / "link").symlink_to(outside)
    (root / "link").symlink_to(outside)
    assert LinkFolder(root).remove_left_overs() == 0  # the first has removed it
    assert not dead.exists()
    assert (outside / "kept").exists()
