"""What is wrong with JSON that cannot be decoded, in words of JSON: msgspec names Python types."""

import re

import msgspec

_MISSING = re.compile(r"Object missing required field `(\w+)`(?: - at `\$\.?(.*)`)?")
_WRONG_TYPE = re.compile(r"Expected `(\w+)`, got `(\w+)`(?: - at `\$\.?(.*)`)?")
_WORDS = {
    "array": "a list",
    "bool": "true or false",
    "float": "a number",
    "int": "an integer",
    "object": "an object",
    "str": "a text",
}


def describe_fault(error: msgspec.MsgspecError) -> str:
    """``input_length is missing``; ``hash_ids[0] is a text, not an integer``."""
    text = str(error)
    if missing := _MISSING.fullmatch(text):
        name, place = missing.groups()
        return f"{name} is missing" + (f" in {place}" if place else "")
    if wrong := _WRONG_TYPE.fullmatch(text):
        expected, found, place = wrong.groups()
        kinds = f"{_WORDS.get(found, found)}, not {_WORDS.get(expected, expected)}"
        return f"{place or 'it'} is {kinds}"
    return text if isinstance(error, msgspec.ValidationError) else f"it is no JSON ({text})"
