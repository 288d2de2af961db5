"""The one shape of every result file of the project, and the way it reaches the disk.

A benchmark builds a `BenchmarkResult` and calls `write`. Must not know what is measured.

    {name, git_sha, config, hardware, versions, seed,
     results: [{case, value, unit, peer, peer_value, ratio, limit, of_limit}]}
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import msgspec

from benchmarks.machine import Hardware, collect_git_sha, collect_hardware, collect_versions
from benchmarks.statistics import PairedRatio, paired_ratio, percentile

__all__ = [
    "BenchmarkResult",
    "CaseResult",
    "Hardware",
    "PairedRatio",
    "ResultError",
    "collect_git_sha",
    "collect_hardware",
    "collect_versions",
    "paired_ratio",
    "percentile",
    "read_result",
]


class ResultError(ValueError):
    """A result that does not have the shape, or whose figures contradict each other."""


class CaseResult(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One figure, with what it is compared to: a peer measured in the same run, a limit, or both.

    `of_limit` is value / limit; it is filled in when left out, and checked when read from a file.
    """

    case: str
    value: float
    unit: str
    peer: str | None = None  # what else was measured, e.g. "transformers 5.16"
    peer_value: float | None = None  # in `unit`
    ratio: PairedRatio | None = None  # value over peer, from interleaved pairs
    limit: float | None = None  # the bound of the hardware, or the promise, in `unit`
    of_limit: float | None = None

    def __post_init__(self) -> None:
        if not self.case or not self.unit:
            raise ResultError("a case needs a name and a unit")
        for name in ("value", "peer_value", "limit", "of_limit"):
            figure: float | None = getattr(self, name)
            if figure is not None and not math.isfinite(figure):
                raise ResultError(f"case {self.case}: {name} must be finite, got {figure}")
        if (self.peer is None) != (self.peer_value is None):
            raise ResultError(f"case {self.case}: peer and peer_value come together")
        if self.ratio is not None and self.peer is None:
            raise ResultError(f"case {self.case}: a ratio needs the peer it was measured against")
        self._settle_of_limit()

    def _settle_of_limit(self) -> None:
        if self.limit is None:
            if self.of_limit is not None:
                raise ResultError(f"case {self.case}: of_limit needs a limit")
            return
        if self.limit <= 0.0:
            raise ResultError(f"case {self.case}: limit must be above 0, got {self.limit}")
        of_limit = self.value / self.limit
        if self.of_limit is None:
            # The documented way to derive a field of a frozen struct.
            msgspec.structs.force_setattr(self, "of_limit", of_limit)
        elif not math.isclose(self.of_limit, of_limit, rel_tol=1e-9):
            raise ResultError(f"case {self.case}: of_limit {self.of_limit} is not value / limit")


class BenchmarkResult(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A result file."""

    name: str
    git_sha: str
    config: Mapping[str, Any]  # what the benchmark was told; JSON values, never a secret
    hardware: Hardware
    versions: Mapping[str, str]
    seed: int
    results: tuple[CaseResult, ...]

    def __post_init__(self) -> None:
        if not self.name or not self.git_sha:
            raise ResultError("a result needs a name and a git_sha")
        if not self.results:
            raise ResultError(f"result {self.name} has no cases")
        cases = [result.case for result in self.results]
        repeated = sorted({case for case in cases if cases.count(case) > 1})
        if repeated:
            raise ResultError(f"result {self.name} has cases twice: {', '.join(repeated)}")

    @classmethod
    def of_this_machine(
        cls,
        *,
        name: str,
        config: Mapping[str, Any],
        seed: int,
        results: Sequence[CaseResult],
        accelerators: Sequence[str] = (),
    ) -> Self:
        """A result measured here and now: commit, hardware and versions are collected."""
        return cls(
            name=name,
            git_sha=collect_git_sha(),
            config=config,
            hardware=collect_hardware(accelerators),
            versions=collect_versions(),
            seed=seed,
            results=tuple(results),
        )

    def write(self, path: Path) -> None:
        """Write as indented JSON, whole or not at all; missing folders are made.

        Raises ResultError if a value has the wrong type, OSError if the disk refuses.
        """
        encoded = msgspec.json.encode(self)
        _decode(encoded)  # structs check types when read, not when built
        document = msgspec.json.format(encoded, indent=2) + b"\n"
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(document)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(partial, 0o644)  # mkstemp makes it private, a result is to be read
            os.replace(partial, path)
        except BaseException:
            Path(partial).unlink(missing_ok=True)
            raise


def read_result(path: Path) -> BenchmarkResult:
    """Read and validate a result file; raises ResultError if it hasn't the shape."""
    return _decode(path.read_bytes())


def _decode(encoded: bytes) -> BenchmarkResult:
    try:
        return msgspec.json.decode(encoded, type=BenchmarkResult)
    except msgspec.MsgspecError as error:
        raise ResultError(f"not a result of this project: {error}") from error
