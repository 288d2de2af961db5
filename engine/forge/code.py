"""What tells one version of the code from another: of a forge and of a front that asks it.

Imports no torch, which a front does without.
"""

import hashlib
import sys
from functools import cache
from importlib.metadata import version
from pathlib import Path

SOURCE_ROOT = Path(__file__).resolve().parents[2]
_PACKAGES = ("engine", "cache_tiers", "wire")
"""All that a rank imports of ours."""
_DISTRIBUTIONS = ("torch", "numpy", "msgspec", "pydantic")


def code_digest(root: Path = SOURCE_ROOT) -> str:
    """Of our sources, what they are compiled by, and what they compute with."""
    digest = hashlib.sha256()
    digest.update(f"{sys.version} {sys.prefix}".encode())
    for name in _DISTRIBUTIONS:
        digest.update(f"{name} {version(name)}\n".encode())
    for package in _PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            content = path.read_bytes()
            digest.update(f"{path.relative_to(root)} {len(content)}\n".encode())
            digest.update(content)
    return digest.hexdigest()


@cache
def this_code() -> str:
    """As it stood when it was first asked for in this process."""
    return code_digest()
