"""One model's files while they arrive from one place, hashed as they grow.

Must not know what place that is.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cache_tiers.weights.arriving_file import ArrivingFile
from cache_tiers.weights.errors import OriginFailed, WeightsError
from cache_tiers.weights.messages import WeightFile

_NUM_HASHERS = 4
_LONG_S = 1e6
"""Who brings the bytes watches the time: one file may wait long for its turn."""


class Arrival:
    """``open_files`` once; then ``digests``, or ``give_up``. On one event loop."""

    def __init__(
        self, make: Callable[[Sequence[WeightFile]], Sequence[ArrivingFile]], *, is_hashed: bool
    ) -> None:
        """``is_hashed``: the files must be hashed here."""
        self._make = make
        self._is_hashed = is_hashed
        self._hashers: ThreadPoolExecutor | None = None
        self._digests: list[asyncio.Future[str]] = []
        self.files: Sequence[ArrivingFile] = ()

    def open_files(self, files: Sequence[WeightFile]) -> Sequence[ArrivingFile]:
        """Raises what making them raises, and `OriginFailed` for names that no file of a
        model has, or two."""
        assert not self.files
        if len({file.name for file in files}) != len(files):
            raise OriginFailed("it names a file twice")
        for file in files:
            if Path(file.name).name != file.name or file.name.startswith("."):
                raise OriginFailed(f"{file.name!r} is no name for a file of a model")
        self.files = self._make(files)
        if self._is_hashed and self.files:
            self._hashers = ThreadPoolExecutor(_NUM_HASHERS, "weights-hasher")
            loop = asyncio.get_running_loop()
            self._digests = [
                loop.run_in_executor(self._hashers, file.sha256, _LONG_S) for file in self.files
            ]
        return self.files

    @property
    def num_bytes(self) -> int:
        return sum(file.file.num_bytes for file in self.files)

    @property
    def num_arrived_bytes(self) -> int:
        return sum(file.num_arrived_bytes for file in self.files)

    async def digests(self) -> dict[str, str]:
        """sha256 by name, of all files, which are whole."""
        found = await asyncio.gather(*self._digests)
        self._stop()
        return {file.file.name: digest for file, digest in zip(self.files, found, strict=True)}

    async def give_up(self, error: WeightsError) -> None:
        """No one waits for the files any more, or reads them here."""
        for file in self.files:
            file.fail(error)
        for digest in self._digests:
            digest.cancel()  # of those that haven't begun
        if self._hashers is not None:
            hashers = self._hashers
            await asyncio.shield(asyncio.to_thread(hashers.shutdown, cancel_futures=True))
        await asyncio.gather(*self._digests, return_exceptions=True)

    def _stop(self) -> None:
        if self._hashers is not None:
            self._hashers.shutdown(wait=False)
