"""Rates are read with every fault named, and arrivals vary as clients' times between them do."""

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from simulator.errors import TraceError
from simulator.scaling.rate_trace import RateTrace, of_arrivals, read_rates


def write(path: Path, **arrays: object) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        for name, array in arrays.items():
            content = io.BytesIO()
            np.save(content, np.asarray(array))
            file.writestr(f"{name}.npy", content.getvalue())
    return path


def test_rates_of_all_clients_are_added(tmp_path: Path) -> None:
    path = write(tmp_path / "t.npz", rate=[[1.0, 2.0], [3.0, 4.0]], cv=[[1.0, 1.0], [2.0, 2.0]])
    trace = read_rates(path)
    assert trace.rates.tolist() == [4.0, 6.0]
    assert trace.variances.tolist() == [13.0, 18.0]


def test_a_client_without_requests_needs_no_cv(tmp_path: Path) -> None:
    path = write(tmp_path / "t.npz", rate=[[0.0, 2.0]], cv=[[np.nan, 1.0]])
    assert read_rates(path).rates.tolist() == [0.0, 2.0]


def test_counts_have_the_mean_and_the_variance_of_the_trace() -> None:
    num = 300
    trace = RateTrace("t", np.full(num, 20.0), np.full(num, 180.0))
    counts = trace.counts(10.0)
    assert counts.mean() == pytest.approx(200, rel=0.02)
    assert counts.var() == pytest.approx(1800, rel=0.05)


def test_equal_seeds_draw_equal_counts() -> None:
    trace = RateTrace("t", np.full(10, 20.0), np.full(10, 20.0))
    assert (trace.counts(10.0, 3) == trace.counts(10.0, 3)).all()
    assert (trace.counts(10.0, 3) != trace.counts(10.0, 4)).any()


def test_recorded_arrivals_are_counted_as_they_are() -> None:
    trace = of_arrivals("t", np.array([5.0, 5.5, 17.0, 35.0]))
    # From the first on; the last one comes when the third tick has ended.
    assert trace.counts(10.0).tolist() == [2, 1, 0]


@pytest.mark.parametrize(
    ("arrays", "complaint"),
    [
        ({"rate": [[1.0, 2.0]]}, "has no array cv; it has rate"),
        ({"rate": [[1.0, np.nan]], "cv": [[1.0, 1.0]]}, "rate of client 0 in step 1 is nan"),
        ({"rate": [[1.0, -2.0]], "cv": [[1.0, 1.0]]}, "rate of client 0 in step 1 is -2.0"),
        ({"rate": [[1.0, np.inf]], "cv": [[1.0, 1.0]]}, "is inf; all must be finite"),
        ({"rate": [[1.0, 1.0]], "cv": [[1.0, -1.0]]}, "cv of client 0 in step 1 is -1.0"),
        ({"rate": [[1.0, 1.0]], "cv": [[1.0, np.nan]]}, "cv of client 0 in step 1 is nan"),
        ({"rate": [[1.0]], "cv": [[1.0]]}, "1 steps; it takes at least one client and 2"),
        ({"rate": [1.0, 2.0], "cv": [1.0, 1.0]}, "not clients by steps"),
        ({"rate": [[1.0, 2.0]], "cv": [[1.0]]}, "not the same"),
        ({"rate": [["a", "b"]], "cv": [[1.0, 1.0]]}, "not numbers"),
    ],
)
def test_a_fault_is_named(tmp_path: Path, arrays: dict[str, object], complaint: str) -> None:
    with pytest.raises(TraceError) as caught:
        read_rates(write(tmp_path / "t.npz", **arrays))
    assert complaint in str(caught.value)


def test_what_is_no_trace_is_said(tmp_path: Path) -> None:
    (tmp_path / "t.npz").write_bytes(b"PK\x03\x04 nonsense")
    (tmp_path / "e.npz").write_bytes(b"")
    for name, complaint in (
        ("t.npz", "is no .npz"),
        ("e.npz", "is no .npz"),
        ("missing.npz", "cannot be read: No such file"),
        ("t.txt", "neither an .npz nor a .csv"),
    ):
        with pytest.raises(TraceError) as caught:
            read_rates(tmp_path / name)
        assert complaint in str(caught.value)


def test_a_trace_shorter_than_a_tick_is_refused() -> None:
    with pytest.raises(TraceError, match="shorter than one tick"):
        of_arrivals("t", np.array([1.0, 2.0])).counts(10.0)
