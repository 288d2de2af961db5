"""Merges metrics pages of several replicas into one, each series labelled with its replica.

Pure text in, text out. A page is not trusted: only well-formed lines of this project's own families
get through, so that a broken or hostile replica spoils neither the page nor another one's series.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

PREFIX = "headwater:"
MAX_PAGE_BYTES = 4 * 1024 * 1024
"""Of one replica."""
MAX_TOTAL_BYTES = 32 * 1024 * 1024
"""Of the merged page: some 700 replicas."""
MAX_LINE_CHARS = 4096

_NAME = PREFIX + r"[a-zA-Z0-9_:]+"
_LABELS = r'(?:[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\]|\\[\\"n])*"(?:,(?=[a-zA-Z_])|(?=\})))+'
_VALUE = r"[+-]?(?:Inf|NaN|[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)"
_SAMPLE = re.compile(rf"({_NAME})(?:\{{({_LABELS})?\}})? ({_VALUE})")
_TYPE = re.compile(rf"# TYPE ({_NAME}) (counter|gauge|histogram|summary)")
_HELP = re.compile(rf"# HELP ({_NAME}) (.*)")
_OWN_LABEL = re.compile(r'(?:^|,)(?:replica|role)="')

_SUFFIXES = {
    "counter": ("",),
    "gauge": ("",),
    "histogram": ("_bucket", "_sum", "_count"),
    "summary": ("", "_sum", "_count"),
}


@dataclass(frozen=True, slots=True)
class Page:
    """What one replica said."""

    replica: str
    role: str
    text: str | None
    """None: it did not answer."""


@dataclass(slots=True)
class _Family:
    kind: str
    help: str
    lines: list[str] = field(default_factory=list)


def merge_pages(pages: Sequence[Page]) -> bytes:
    """One page; ``headwater:scrape_up`` says which replicas are in it."""
    families: dict[str, _Family] = {
        f"{PREFIX}scrape_up": _Family("gauge", "Whether the replica's metrics are on this page."),
        f"{PREFIX}scrape_dropped_lines": _Family(
            "gauge", "Lines of the replica's page that were not understood."
        ),
    }
    up, dropped = (family.lines for family in families.values())
    num_left_bytes = MAX_TOTAL_BYTES
    for page in pages:
        labels = f'replica="{_escaped(page.replica)}",role="{_escaped(page.role)}"'
        taken = None if page.text is None else _take_in(page.text, labels, families, num_left_bytes)
        is_up = taken is not None
        up.append(f"{PREFIX}scrape_up{{{labels}}} {int(is_up)}")
        if taken is not None:
            num_left_bytes -= taken.num_bytes
            dropped.append(f"{PREFIX}scrape_dropped_lines{{{labels}}} {taken.num_dropped}")
    parts = [
        f"# HELP {name} {family.help}\n# TYPE {name} {family.kind}\n" + "\n".join(family.lines)
        for name, family in families.items()
        if family.lines
    ]
    return ("\n".join(parts) + "\n").encode()


@dataclass(frozen=True, slots=True)
class _Taken:
    num_bytes: int
    num_dropped: int


def _take_in(text: str, labels: str, families: dict[str, _Family], max_bytes: int) -> _Taken | None:
    """Add the page's series to ``families``; None, and nothing added, if they are too large."""
    own: dict[str, _Family] = {}
    helps: dict[str, str] = {}
    names: dict[str, _Family] = {}
    seen: set[str] = set()
    num_bytes = num_dropped = 0
    for line in text.split("\n"):
        if not line:
            continue
        if line.startswith("#"):
            _take_comment(line, own, helps, names)
            continue
        match = _SAMPLE.fullmatch(line) if len(line) <= MAX_LINE_CHARS else None
        family = None if match is None else names.get(match[1])
        series = "" if match is None else f"{match[1]}{{{match[2] or ''}"
        if match is None or family is None or series in seen or _OWN_LABEL.search(match[2] or ""):
            num_dropped += 1
            continue
        seen.add(series)
        merged = f"{series}{',' if match[2] else ''}{labels}}} {match[3]}"
        num_bytes += len(merged) + 1
        family.lines.append(merged)
    if num_bytes > max_bytes:
        return None
    for name, family in own.items():
        first = families.setdefault(name, _Family(family.kind, family.help))
        if first.kind == family.kind:
            first.lines += family.lines
        else:
            num_dropped += len(family.lines)
    return _Taken(num_bytes, num_dropped)


def _take_comment(
    line: str, own: dict[str, _Family], helps: dict[str, str], names: dict[str, _Family]
) -> None:
    """``names``: which family a sample of a name belongs to."""
    if len(line) > MAX_LINE_CHARS:
        return
    if (match := _HELP.fullmatch(line)) is not None:
        helps[match[1]] = match[2]
    elif (match := _TYPE.fullmatch(line)) is not None and match[1] not in own:
        name, kind = match[1], match[2]
        family = own[name] = _Family(kind, helps.get(name, ""))
        for suffix in _SUFFIXES[kind]:
            names.setdefault(name + suffix, family)


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
