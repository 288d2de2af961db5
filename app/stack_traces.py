"""Where an unexpected error arose, fit for a log: its message may quote a prompt or a key."""

import traceback


def stack_of(error: BaseException) -> str:
    """Types and lines of code of ``error`` and of those that led to it; no messages, no values."""
    parts: list[str] = []
    current: BaseException | None = error
    while current is not None:
        lines = "".join(traceback.format_tb(current.__traceback__))
        parts.append(f"{type(current).__qualname__} at\n{lines}")
        is_hidden = current.__suppress_context__
        current = current.__cause__ or (None if is_hidden else current.__context__)
    return "after ".join(parts)
