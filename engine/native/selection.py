"""Decides between the compiled step and torch, for all ranks of a replica alike."""

import logging
from collections.abc import Callable
from pathlib import Path

import torch

from engine.collectives import Collectives
from engine.config import EngineConfig
from engine.errors import CompiledStepUnavailable, EngineConfigError
from engine.models.model_config import ModelConfig
from engine.native.library import StepLibrary
from engine.native.library_cache import LibraryCache, library_key
from engine.native.processor import this_processor
from engine.native.support import reason_against

logger = logging.getLogger(__name__)

OpenLibrary = Callable[[], StepLibrary]
_MAPS = Path("/proc/self/maps")


def choose_library(
    config: EngineConfig,
    model: ModelConfig,
    cache: Path,
    collectives: Collectives | None,
    open_library: OpenLibrary | None = None,
) -> StepLibrary | None:
    """The compiled step, or None where torch computes the layers; a line says which and why.

    ``model`` is the whole one. All ranks call it, since all must compute in the same way. Raises
    `EngineConfigError` if there is none and the configuration requires it.
    """
    library: StepLibrary | None = None
    reason = reason_against(config, model, cache)
    is_foreseen = reason is not None
    if reason is None:
        try:
            library = (open_library or library_opener(cache))()
        except (CompiledStepUnavailable, OSError) as error:  # the disk may fail it, too
            reason = str(error)
    if collectives is not None and not _have_all(library is not None, collectives):
        library = None
        reason = reason or "another rank has none"
    if library is not None:
        logger.info("the compiled step runs the layers")
        return library
    if config.compiled == "require":
        raise EngineConfigError(
            f"compiled is 'require', but the compiled step can't be used: {reason}. Set compiled "
            "to 'auto' to do without."
        )
    if config.compiled == "auto":
        level = logging.INFO if is_foreseen else logging.WARNING
        logger.log(level, "torch runs the layers, not the compiled step: %s", reason)
    return None


def library_opener(cache: Path) -> OpenLibrary:
    """From ``cache``, for this process."""
    openmp = loaded_openmp()
    key = library_key(this_processor(), torch.__version__, openmp)
    return LibraryCache(cache, key, openmp=openmp).open


def loaded_openmp(maps: Path = _MAPS) -> Path | None:
    """The OpenMP library that torch has loaded, so that both share its threads."""
    try:
        lines = maps.read_text("utf-8", "replace").splitlines()
    except OSError:
        return None
    paths = (Path(line.split(maxsplit=5)[-1]) for line in lines if "libgomp" in line)
    return next(paths, None)


def _have_all(has_library: bool, collectives: Collectives) -> bool:
    num_having = torch.tensor([float(has_library)])
    collectives.all_reduce_(num_having)
    return int(num_having.item()) == collectives.rank.size
