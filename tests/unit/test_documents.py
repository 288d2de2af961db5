"""The documents point at files that exist."""

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
DOCUMENTS = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "benchmarks/*.md")
    for path in REPOSITORY.glob(pattern)
)

_LINK = re.compile(r"\]\((?!https?:)([^)#]+)")
_MODULE = re.compile(r"`((?:[a-z_]+/)+[a-z_0-9]+\.(?:py|yaml|md))`")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_and_named_files_exist(document: Path) -> None:
    text = document.read_text("utf-8")
    linked = [document.parent / link for link in _LINK.findall(text)]
    named = [REPOSITORY / module for module in _MODULE.findall(text)]
    assert [path for path in linked + named if not path.exists()] == []


def test_the_architecture_names_files() -> None:
    text = (REPOSITORY / "docs" / "architecture.md").read_text("utf-8")
    assert len(_MODULE.findall(text)) > 40
