"""What a forge and a front compare before one forks for the other."""

from pathlib import Path

import pytest

from engine.forge.code import code_digest


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("engine/rank.py", "engine/forge/forge.py", "wire/pipe.py", "cache_tiers/keys.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {name}\n")
    return tmp_path


def test_the_same_sources_are_the_same_code_wherever_they_lie(root: Path) -> None:
    before = code_digest(root)
    (root / "engine" / "rank.py").touch()
    (root / "engine" / "notes.txt").write_text("not imported")
    moved = root.rename(root.with_name("elsewhere"))
    assert code_digest(moved) == before


@pytest.mark.parametrize("package", ["engine", "engine/forge", "wire", "cache_tiers"])
def test_a_change_of_any_source_is_another_code(root: Path, package: str) -> None:
    digests = {code_digest(root)}
    [path, *_] = (root / package).glob("*.py")
    path.write_text("changed = True\n")
    digests.add(code_digest(root))
    path.rename(path.with_name("renamed.py"))
    digests.add(code_digest(root))
    (root / package / "new.py").write_text("")
    digests.add(code_digest(root))
    assert len(digests) == 4
