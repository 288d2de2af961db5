from pathlib import Path

import pytest

from engine.checkpoints.chat_template_file import extract_chat_template, read_chat_template
from engine.checkpoints.errors import CorruptCheckpoint
from tests.unit.engine.checkpoints.published import write_json

OTHER = {"name": "tool_use", "template": "tools"}


def extracted(folder: Path) -> str | None:
    extract_chat_template(folder)
    return read_chat_template(folder)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("text", "text"),
        ([OTHER, {"name": "default", "template": "chosen"}], "chosen"),
        ([OTHER], "tools"),
        ([OTHER, {"name": "rag", "template": "rag"}], None),
        (None, None),
    ],
)
def test_the_default_or_only_template_of_the_tokenizer_config_counts(
    tmp_path: Path, value: object, expected: str | None
) -> None:
    write_json(tmp_path / "tokenizer_config.json", {"chat_template": value})
    assert extracted(tmp_path) == expected


def test_a_file_of_its_own_comes_first_and_the_older_json_last(tmp_path: Path) -> None:
    write_json(tmp_path / "chat_template.json", {"chat_template": "last"})
    assert extracted(tmp_path) == "last"
    (tmp_path / "chat_template.jinja").write_text("first")
    write_json(tmp_path / "tokenizer_config.json", {"chat_template": "second"})
    assert extracted(tmp_path) == "first"


def test_a_template_keeps_its_line_ends(tmp_path: Path) -> None:
    write_json(tmp_path / "tokenizer_config.json", {"chat_template": "a\r\nb\nä"})
    extract_chat_template(tmp_path)
    assert (tmp_path / "chat_template.jinja").read_bytes() == "a\r\nb\nä".encode()


@pytest.mark.parametrize("value", [3, {}, [3], [{"name": "default"}], ["text"], "x" * (1 << 21)])
def test_what_is_no_template_is_refused(tmp_path: Path, value: object) -> None:
    write_json(tmp_path / "tokenizer_config.json", {"chat_template": value})
    with pytest.raises(CorruptCheckpoint, match="chat_template"):
        extract_chat_template(tmp_path)


@pytest.mark.parametrize("content", [b"\xff", b"x" * (2 << 20)])
def test_a_template_file_that_is_no_text_or_endless_is_refused(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(content)
    with pytest.raises(CorruptCheckpoint, match="chat_template"):
        read_chat_template(tmp_path)
