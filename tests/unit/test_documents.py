"""The documents point at files that exist, and results at none of a machine."""

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


@pytest.mark.parametrize(
    "file", sorted((REPOSITORY / "benchmarks/results").glob("*.json")), ids=lambda file: file.name
)
def test_a_result_file_names_no_folder_of_a_machine(file: Path) -> None:
    found = re.findall(r"(?<![\w.~])/(?:home|root|tmp|work|Users|var)/[\w./-]*", file.read_text())
    assert not found
