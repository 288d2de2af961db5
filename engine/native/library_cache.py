"""Compiled libraries on the disk: one per sources, processor and compiler, made on first use.

    <cache>/step-<key>-<compiler>.so    the library, then the sha256 of all before it
    <cache>/lock                        held by the process that compiles

``key`` is of sources, flags, processor, torch's version and its OpenMP library. A folder that was
copied from a node of the same kind serves here, too, even where there is no compiler. What fails
its hash, can't be loaded, or could have been written by another user, is removed and made anew; a
folder that another user could write to is not used.
"""

import errno
import hashlib
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

from engine.errors import CompiledStepUnavailable
from engine.native.file_lock import held_lock
from engine.native.library import StepLibrary
from engine.native.processor import Processor
from engine.native.toolchain import (
    FLAGS,
    Compiler,
    compile_library,
    find_compiler,
    source_files,
)

logger = logging.getLogger(__name__)

COMPILE_LIMIT_S = 60.0
_NEW = ".new-"
_DIGEST_BYTES = 32
_NEEDED_BYTES = 4 << 20
"""Free on the disk before compiling: several times what a library takes."""
_KEY_CHARS = 20
_ROOT_UID = 0


def library_key(processor: Processor, torch_version: str, openmp: Path | None) -> str:
    """Of everything but the compiler that makes a library another one."""
    digest = hashlib.sha256()
    linked = "" if openmp is None else openmp.name
    for text in (*FLAGS, *sorted(processor.flags), torch_version, linked):
        digest.update(f"{text}\n".encode())
    for path in source_files():
        digest.update(path.name.encode() + b"\n" + path.read_bytes())
    return digest.hexdigest()[:_KEY_CHARS]


def find_libraries(cache: Path, key: str) -> list[Path]:
    """Those in the cache, whichever compiler made them."""
    return sorted(cache.glob(f"step-{key}-*.so"))


def reason_to_distrust(path: Path, own_uid: int | None = None) -> str | None:
    """Why another user could have made or changed ``path``, whose code would run as this one; None
    if nobody could, or nothing is there. Raises ``OSError`` if that can't be told."""
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if status.st_uid not in (os.geteuid() if own_uid is None else own_uid, _ROOT_UID):
        return f"{path} belongs to user {status.st_uid}"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"{path} can be written by other users"
    return None


class LibraryCache:
    """The libraries in one folder, for this processor."""

    def __init__(
        self,
        folder: Path,
        key: str,
        *,
        openmp: Path | None,
        find: Callable[[], Compiler] = find_compiler,
        load: Callable[[Path], StepLibrary] = StepLibrary,
        limit_s: float = COMPILE_LIMIT_S,
        lock_limit_s: float = COMPILE_LIMIT_S,
    ) -> None:
        self._folder = folder
        self._key = key
        self._openmp = openmp
        self._find = find
        self._load = load
        self._limit_s = limit_s
        self._lock_limit_s = lock_limit_s

    def open(self) -> StepLibrary:
        """Load the library, after compiling it if need be.

        Raises `CompiledStepUnavailable` without one: no compiler, or one that fails, hangs, or
        makes what does not run here.
        """
        try:
            compiler = self._find()
        except CompiledStepUnavailable:
            for path in find_libraries(self._folder, self._key):
                library = self._load_cached(path)
                if library is not None:
                    return library
            raise
        name = hashlib.sha256(compiler.version.encode()).hexdigest()[:_KEY_CHARS]
        path = self._folder / f"step-{self._key}-{name}.so"
        library = self._load_cached(path)
        if library is not None:
            return library
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            distrust = reason_to_distrust(self._folder)
            if distrust is not None:
                logger.warning("the compiled step is not kept: %s", distrust)
                return self._compile_unkept(compiler)
            with held_lock(self._folder / "lock", limit_s=self._lock_limit_s) as is_held:
                library = self._load_cached(path)
                if library is not None:
                    return library
                if is_held:
                    self._remove_left_overs()
                return self._compile(compiler, path)
        except OSError as error:
            logger.warning(
                "the compiled step is not kept: %s can't be written (%s)", self._folder, error
            )
            return self._compile_unkept(compiler)

    def _load_cached(self, path: Path) -> StepLibrary | None:
        """None if there is none, or none that is whole and from whom it may be."""
        try:
            distrust = reason_to_distrust(self._folder)
            problem = reason_to_distrust(path)
            is_other = path.exists() and not path.is_file()  # a pipe would never end
            content = b"" if is_other else path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            logger.warning("the compiled step in %s can't be read (%s)", path, error)
            return None
        if distrust is not None:
            logger.warning("%s is not used: %s", path, distrust)
            return None
        if is_other:
            problem = "it is no file"
        body, digest = content[:-_DIGEST_BYTES], content[-_DIGEST_BYTES:]
        # The linker would trust a file that is cut short, and die by SIGBUS.
        if problem is None and hashlib.sha256(body).digest() != digest:
            problem = "it is corrupt"
        if problem is None:
            try:
                return self._load(path)
            except CompiledStepUnavailable as error:
                problem = str(error)
        logger.warning("%s is compiled anew: %s", path, problem)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            logger.warning("%s can't be removed (%s)", path, error)
        return None

    def _remove_left_overs(self) -> None:
        """Of killed processes, or of one that works without the lock, and can do without, too."""
        for left in self._folder.glob(f"{_NEW}*"):
            left.unlink(missing_ok=True)

    def _compile(self, compiler: Compiler, path: Path) -> StepLibrary:
        descriptor, name = tempfile.mkstemp(dir=self._folder, prefix=_NEW, suffix=".so")
        os.close(descriptor)
        new = Path(name)
        try:
            # Told here, since a compiler's complaint would not show that it is the disk's fault.
            if shutil.disk_usage(self._folder).free < _NEEDED_BYTES:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            library = self._compile_into(compiler, new)
            try:
                new.replace(path)
            except FileNotFoundError:
                pass  # the holder of the lock took it for a left-over
            except OSError as error:
                logger.warning("the compiled step is not kept: %s", error)
        finally:
            new.unlink(missing_ok=True)
        return library

    def _compile_unkept(self, compiler: Compiler) -> StepLibrary:
        try:
            with tempfile.TemporaryDirectory(prefix="headwater-step-") as folder:
                return self._compile_into(compiler, Path(folder) / "step.so")
        except OSError as error:
            raise CompiledStepUnavailable(f"there is no place to compile it ({error})") from error

    def _compile_into(self, compiler: Compiler, target: Path) -> StepLibrary:
        """Compiled, hashed and loaded: once mapped, the file may move or go."""
        target.unlink(missing_ok=True)  # what is there then is the compiler's
        compile_library(compiler, target, openmp=self._openmp, limit_s=self._limit_s)
        digest = hashlib.sha256(target.read_bytes()).digest()
        with target.open("ab") as file:
            os.fchmod(file.fileno(), 0o755)  # whatever the umask: else it would not be trusted
            file.write(digest)
            file.flush()
            os.fsync(file.fileno())
        return self._load(target)
