"""What a model's makers say about generating: end tokens and sampling defaults.

Reads generation_config.json and config.json as parsed objects; a value of the wrong type or range
is named, never passed on. Knows no files and no sampling.
"""

from collections.abc import Mapping
from typing import Any

from engine.checkpoints.errors import CorruptCheckpoint
from engine.messages import SamplingDefaults

_MAX_TOKEN_ID = 2**31 - 1


def read_eos_token_ids(
    generation: Mapping[str, Any], config: Mapping[str, Any], *, where: str
) -> tuple[int, ...]:
    """All tokens that either file calls an end: those of the generation config come first."""
    sources = (generation, config, _text_config(config))
    values = [source.get("eos_token_id") for source in sources]
    ids = [
        _token_id(item, "eos_token_id", where)
        for value in values
        if value is not None
        for item in (value if isinstance(value, list) else [value])
    ]
    return tuple(dict.fromkeys(ids))


def read_bos_token_id(config: Mapping[str, Any], *, where: str) -> int | None:
    value = config.get("bos_token_id", _text_config(config).get("bos_token_id"))
    return None if value is None else _token_id(value, "bos_token_id", where)


def read_sampling_defaults(generation: Mapping[str, Any], *, where: str) -> SamplingDefaults:
    """What the generation config recommends; nothing of what it doesn't mention.

    ``do_sample: false`` says that the model is meant to be greedy, and makes what stands beside it
    about sampling a leftover; the penalty holds either way. A missing ``do_sample`` doesn't count
    as false, though transformers takes it so: publishers leave it out.
    """
    reader = _Reader(generation, where)
    penalty = reader.number("repetition_penalty", above=0.0)
    if reader.flag("do_sample") is False:
        return SamplingDefaults(repetition_penalty=penalty)
    return SamplingDefaults(
        temperature=reader.number("temperature", at_least=0.0),
        top_p=reader.number("top_p", above=0.0, at_most=1.0),
        top_k=reader.top_k(),
        min_p=reader.number("min_p", at_least=0.0, at_most=1.0),
        repetition_penalty=penalty,
    )


def _text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language part of a model that also sees images."""
    section = config.get("text_config")
    return section if isinstance(section, dict) else {}


def _token_id(value: object, key: str, where: str) -> int:
    if type(value) is not int or not 0 <= value <= _MAX_TOKEN_ID:  # a bool is no id
        raise CorruptCheckpoint(f"{where}: {key} {_shown(value)} is no token id.")
    return value


class _Reader:
    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self._values = values
        self._where = where

    def flag(self, key: str) -> bool | None:
        value = self._values.get(key)
        if value is not None and not isinstance(value, bool):
            raise self._error(key, "is neither true nor false")
        return value

    def number(
        self,
        key: str,
        *,
        above: float | None = None,
        at_least: float | None = None,
        at_most: float = 1e6,
    ) -> float | None:
        value = self._values.get(key)
        if value is None:
            return None
        if type(value) not in (int, float):
            raise self._error(key, "is not a number")
        if (
            (above is not None and value <= above)
            or (at_least is not None and value < at_least)
            or value > at_most
        ):
            raise self._error(key, "is out of range")
        return float(value)

    def top_k(self) -> int | None:
        """Makers write 0 or -1 for "all"."""
        value = self._values.get("top_k")
        if value is None:
            return None
        if type(value) is not int:
            raise self._error("top_k", "is not an integer")
        if not -1 <= value <= _MAX_TOKEN_ID:
            raise self._error("top_k", "is out of range")
        return max(value, 0)

    def _error(self, key: str, problem: str) -> CorruptCheckpoint:
        return CorruptCheckpoint(
            f"{self._where}/generation_config.json: {key} {_shown(self._values[key])} {problem}. "
            "Correct the file at the source, or leave the key out."
        )


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
