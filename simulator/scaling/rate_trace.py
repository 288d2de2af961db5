"""Request rates over days, and arrivals drawn from them. Must not know policies.

Two kinds of files: ``.npz`` with arrays ``rate`` and ``cv`` of clients by steps of 10 minutes, in
requests/s and as the coefficient of variation of times between arrivals (as of ServeGen), and
``.csv`` with a TIMESTAMP per request (as of Azure), of which arrivals are counted.
"""

import math
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from simulator.errors import TraceError
from simulator.traces import read_azure

Vector = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]

STEP_S = 600.0
"""Of the rates in an ``.npz``."""
DAY_S = 86_400.0
_LEAST_STEPS = 2
_LEAST_CV, _MOST_CV = 0.1, 20.0
_MOST_RATE = 1e9
FORMATS = (
    "an .npz has the arrays rate (requests/s) and cv (of the times between arrivals), each of "
    "clients by steps of 10 minutes, as ServeGen's; a .csv has the columns TIMESTAMP, "
    "ContextTokens and GeneratedTokens, a row per request, as Azure's"
)


@dataclass(frozen=True, slots=True)
class RateTrace:
    """What comes, as rates to draw from or as arrivals that were recorded."""

    name: str
    rates: Vector
    """Requests/s in each step of 10 minutes, all clients together."""
    variances: Vector
    """Of the arrivals in a second."""
    arrivals_s: Vector | None = None
    """Recorded ones, from 0 on; then nothing is drawn."""

    @property
    def duration_s(self) -> float:
        if self.arrivals_s is not None:
            return float(self.arrivals_s[-1])
        return len(self.rates) * STEP_S

    def counts(self, tick_s: float, seed: int = 0) -> Counts:
        """Arrivals in each tick. Rates are joined by straight lines between the middles of their
        steps; counts are Poisson about a gamma-distributed mean, so that their variance is that
        of clients whose times between arrivals vary by ``cv``.
        """
        num_ticks = int(self.duration_s / tick_s)
        if num_ticks < 1:
            raise TraceError(f"{self.name} is shorter than one tick of {tick_s:g} s")
        if self.arrivals_s is not None:
            ticks = (self.arrivals_s // tick_s).astype(np.int64)
            recorded: Counts = np.bincount(ticks, minlength=num_ticks)[:num_ticks]
            return recorded
        middles = (np.arange(len(self.rates)) + 0.5) * (STEP_S / tick_s)
        at = np.arange(num_ticks) + 0.5
        means = np.maximum(np.interp(at, middles, self.rates) * tick_s, 1e-9)
        variances = np.interp(at, middles, self.variances) * tick_s
        extra = np.maximum(variances - means, 1e-9)
        draw = np.random.default_rng(seed)
        counts: Counts = draw.poisson(draw.gamma(means**2 / extra, extra / means)).astype(np.int64)
        return counts


def read_rates(path: Path, prefix: str = "") -> RateTrace:
    """``prefix``: of the arrays' names. Raises ``TraceError``."""
    if path.suffix == ".csv":
        arrivals = [request.arrival_s for request in read_azure(path).requests]
        return of_arrivals(path.stem, np.array(arrivals))
    if path.suffix != ".npz":
        raise TraceError(f"{path} is neither an .npz nor a .csv: {FORMATS}")
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            missing = [n for n in ("rate", "cv") if prefix + n not in arrays]
            if missing:
                names = ", ".join(arrays.files) or "none"
                raise TraceError(
                    f"{path} has no array {', '.join(prefix + n for n in missing)}; it has "
                    f"{names}: {FORMATS}"
                )
            rate, cv = (arrays[prefix + name] for name in ("rate", "cv"))
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise TraceError(f"{path} is no .npz of numbers: {error}") from error
    return _of_clients(path, rate, cv)


def of_arrivals(name: str, arrivals_s: Vector) -> RateTrace:
    """Recorded arrivals. Raises ``TraceError``."""
    arrivals_s = np.sort(arrivals_s) - arrivals_s.min()
    num_steps = math.ceil(float(arrivals_s[-1]) / STEP_S) or 1
    counts = np.histogram(arrivals_s, np.arange(num_steps + 1) * STEP_S)[0]
    rates = counts / STEP_S
    return RateTrace(name, rates, rates, arrivals_s)


def _of_clients(
    path: Path, rate: npt.NDArray[np.generic], cv: npt.NDArray[np.generic]
) -> RateTrace:
    for name, array in (("rate", rate), ("cv", cv)):
        if not (np.issubdtype(array.dtype, np.floating) or np.issubdtype(array.dtype, np.integer)):
            raise TraceError(f"{path}: {name} holds {array.dtype}, not numbers")
        if array.ndim != 2:
            raise TraceError(f"{path}: {name} has the shape {array.shape}, not clients by steps")
    if rate.shape != cv.shape:
        raise TraceError(f"{path}: rate has the shape {rate.shape} and cv {cv.shape}: not the same")
    if rate.shape[0] < 1 or rate.shape[1] < _LEAST_STEPS:
        raise TraceError(
            f"{path} has {rate.shape[0]} clients and {rate.shape[1]} steps; it takes at least one "
            f"client and {_LEAST_STEPS} steps of 10 minutes"
        )
    rates, cvs = rate.astype(np.float64), cv.astype(np.float64)
    _check(path, "rate", rates)
    # A client that sends nothing has no times between arrivals.
    _check(path, "cv", np.where((rates == 0) & np.isnan(cvs), 1.0, cvs))
    cvs = np.clip(np.nan_to_num(cvs, nan=1.0), _LEAST_CV, _MOST_CV)
    return RateTrace(path.stem, rates.sum(0), (cvs**2 * rates).sum(0))


def _check(path: Path, name: str, values: Vector) -> None:
    wrong = ~((values >= 0) & (values < _MOST_RATE))
    if wrong.any():
        client, step = np.argwhere(wrong)[0]
        raise TraceError(
            f"{path}: {name} of client {client} in step {step} is {values[client, step]}; all must "
            "be finite and 0 or more"
        )
