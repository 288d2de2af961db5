"""What ranks made of a model for nodes of their kind, and what can travel with it: by name only.

    packed-*.weights     the weights as a rank of the compiled step reads them
    compiled-step-*.so   the compiled step; <models>/.compiled/step-*.so where it is used

Each says in its name or header what it was made from, so a node of another kind makes its own; a
checkpoint is whole without them, and they may be replaced at any time. Taken only from where
headwater.json lists them. A library is code: it is placed where ranks load it only if a node is
told to trust those that came with its models.
"""

import os
import re
from pathlib import Path

_LIBRARY_PREFIX = "compiled-"
_EXTRA = re.compile(r"packed-[\w.-]+\.weights|compiled-step-[\w.-]+\.so")


def is_extra(name: str) -> bool:
    return _EXTRA.fullmatch(name) is not None


def published_name(library: Path) -> str:
    """Of a library of the compiled step, as a file of the checkpoint."""
    return f"{_LIBRARY_PREFIX}{library.name}"


def place_libraries(folder: Path, cache: Path) -> None:
    """Let the compiled step find what travelled with the checkpoint ``folder`` in its ``cache``.

    What is there already stays: it was made here.
    """
    libraries = sorted(folder.glob(f"{_LIBRARY_PREFIX}*.so"))
    if libraries:
        cache.mkdir(exist_ok=True)
    for library in libraries:
        place = cache / library.name.removeprefix(_LIBRARY_PREFIX)
        if not place.exists():
            fresh = place.with_name(f".{place.name}.{os.getpid()}")
            fresh.write_bytes(library.read_bytes())  # no link: its owner may write it anew
            fresh.replace(place)
