"""``chat_template.jinja``: the one place where a checkpoint of ours keeps its chat template.

Published models keep it there, in tokenizer_config.json (as a text, or a list of named ones), or in
chat_template.json; the first that exists counts. Knows no jinja.
"""

from pathlib import Path
from typing import Any

from engine.checkpoints.errors import CorruptCheckpoint
from engine.checkpoints.json_file import read_bounded, read_optional_json_object

TEMPLATE_NAME = "chat_template.jinja"
_MAX_TEMPLATE_BYTES = 1 << 20


def read_chat_template(folder: Path) -> str | None:
    """The template's source, None for a base model; raises `CorruptCheckpoint`."""
    path = folder / TEMPLATE_NAME
    if not path.exists():
        return None
    try:
        return read_bounded(path, max_bytes=_MAX_TEMPLATE_BYTES).decode()
    except UnicodeDecodeError as error:
        raise CorruptCheckpoint(f"{path} is not UTF-8 ({error}). Pull the model again.") from error


def find_chat_template(folder: Path) -> str | None:
    """The same for a folder as it was published."""
    written = read_chat_template(folder)
    if written is not None:
        return written
    for name in ("tokenizer_config.json", "chat_template.json"):
        value = read_optional_json_object(folder / name).get("chat_template")
        template = _choose(value, folder / name)
        if template is not None:
            return template
    return None


def extract_chat_template(folder: Path) -> None:
    """Write ``chat_template.jinja`` if the template stands elsewhere."""
    template = find_chat_template(folder)
    if template is not None and not (folder / TEMPLATE_NAME).exists():
        (folder / TEMPLATE_NAME).write_text(template, "utf-8", newline="\n")


def _choose(value: Any, path: Path) -> str | None:
    """The text, or of several named ones the default, or the only one."""
    if value is None or isinstance(value, str):
        return _checked(value, path)
    if not isinstance(value, list) or not all(_is_named_template(item) for item in value):
        raise CorruptCheckpoint(
            f"{path}: chat_template is neither a text nor a list of named ones. Correct the file "
            "at the source."
        )
    by_name = {item["name"]: item["template"] for item in value}
    only = next(iter(by_name.values())) if len(by_name) == 1 else None
    return _checked(by_name.get("default", only), path)


def _is_named_template(item: object) -> bool:
    return (
        isinstance(item, dict)
        and isinstance(item.get("name"), str)
        and isinstance(item.get("template"), str)
    )


def _checked(template: str | None, path: Path) -> str | None:
    if template is not None and len(template.encode()) > _MAX_TEMPLATE_BYTES:
        raise CorruptCheckpoint(f"{path}: chat_template is larger than a mebibyte.")
    return template
