"""docs/configuration.md says what the configuration classes say."""

from pathlib import Path

from deployments.config_reference import render

PAGE = Path(__file__).parents[3] / "docs" / "configuration.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text("utf-8") == render(), "run `make docs`"


def test_every_key_is_explained() -> None:
    unexplained = [line for line in render().splitlines() if line.endswith("|  |")]
    assert not unexplained
