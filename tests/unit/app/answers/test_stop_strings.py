"""Stop strings across pieces: equal to searching the whole text, holding back as little as
possible.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.answers.stop_strings import StopStrings

TEXT = st.text("abc", max_size=30)
STOPS = st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=4)


@st.composite
def cut_texts(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A text and one way to cut it into pieces."""
    text = draw(TEXT)
    cuts = sorted(draw(st.sets(st.integers(0, len(text)))))
    bounds = zip([0, *cuts], [*cuts, len(text)], strict=True)
    return text, [text[start:end] for start, end in bounds]


def stopped_at(text: str, stops: list[str]) -> int | None:
    """The slow twin: where the match that completes first begins, the longest of those."""
    for end in range(1, len(text) + 1):
        starts = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if starts:
            return min(starts)
    return None


@given(cut_texts(), STOPS)
def test_any_pieces_show_what_the_whole_text_would(
    case: tuple[str, list[str]], stops: list[str]
) -> None:
    text, pieces = case
    search = StopStrings(stops)
    shown = ""
    is_stopped = False
    for piece in pieces:
        part, is_stopped = search.push(piece)
        shown += part
        if is_stopped:
            break
    if not is_stopped:
        shown += search.flush()
    at = stopped_at(text, stops)
    assert is_stopped == (at is not None)
    assert shown == (text if at is None else text[:at])


@given(cut_texts(), STOPS)
def test_only_a_live_partial_match_is_held_back(
    case: tuple[str, list[str]], stops: list[str]
) -> None:
    search = StopStrings(stops)
    seen = shown = ""
    for piece in case[1]:
        seen += piece
        part, is_stopped = search.push(piece)
        shown += part
        if is_stopped:
            return
        held = seen[len(shown) :]
        assert not held or any(stop.startswith(held) for stop in stops)


def test_a_match_that_breaks_off_is_released_at_once() -> None:
    search = StopStrings(["</end>"])
    assert search.push("a</en").text == "a"
    assert search.push("x").text == "</enx"


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopStrings(["a", ""])
