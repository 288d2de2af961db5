"""Where the packed weights of a rank lie, and whether they can be had there. Imports no torch."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from engine.config import EngineConfig, RankSpec


def packed_path(checkpoint: Path, config: EngineConfig, rank: RankSpec) -> Path:
    """In the folder ``checkpoint``."""
    dtype = packed_dtype(config)
    return checkpoint / f"packed-{dtype}-{rank.rank}-of-{rank.size}.weights"


def packed_dtype(config: EngineConfig) -> str:
    return "bfloat16" if config.quantization == "none" else config.quantization


def can_map(paths: Sequence[Path], num_bytes: int) -> bool:
    """Whether each of ``paths``, of one folder, is there or can be written with ``num_bytes``.

    Of a file that is there it isn't known yet whether it is the one that is needed.
    """
    num_missing = sum(not path.is_file() for path in paths)
    if num_missing == 0:
        return True
    folder = paths[0].parent
    try:
        return (
            os.access(folder, os.W_OK | os.X_OK)
            and shutil.disk_usage(folder).free >= num_missing * num_bytes
        )
    except OSError:
        return False
