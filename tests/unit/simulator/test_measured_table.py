"""Step times from a table of measured latencies."""

from pathlib import Path

import pytest

from engine.step_time import StepWork
from simulator.errors import TraceError
from simulator.measured_table import TableModel, read_table

HEADER = (
    "model,hardware,prompt_size,batch_size,token_size,prompt_time,token_time,e2e_time,"
    "tensor_parallel"
)
ROWS = (
    "m,h,512,1,128,100,30,3910,8",
    "m,h,512,1,128,110,32,4206,8",
    "m,h,512,1,128,90,28,3646,8",
    "m,h,512,2,128,200,32,4296,8",
    "m,h,2048,1,128,400,30,4210,8",
    "m,h,4096,1,128,150,30,3960,8",  # refused: more than 2048 tokens took less time
    "m,h,512,1,128,1,1,128,2",
)


def read(tmp_path: Path, *rows: str, tensor_parallel_size: int = 8) -> TableModel:
    path = tmp_path / "t.csv"
    path.write_text("\n".join((HEADER, *rows)) + "\n")
    return read_table(path, model="m", hardware="h", tensor_parallel_size=tensor_parallel_size)


def test_times_are_medians_and_linear_between_sizes(tmp_path: Path) -> None:
    model = read(tmp_path, *ROWS)
    assert model.step_time_s(StepWork(512)) == pytest.approx(0.100)
    assert model.step_time_s(StepWork(768)) == pytest.approx(0.150)
    assert model.step_time_s(StepWork(64)) == pytest.approx(0.100)
    assert model.step_time_s(StepWork(0, 1)) == pytest.approx(0.030)
    assert model.step_time_s(StepWork(0, 3)) == pytest.approx(0.034)


def test_decodes_beside_a_prompt_read_the_weights_with_it(tmp_path: Path) -> None:
    model = read(tmp_path, *ROWS)
    both = model.step_time_s(StepWork(512, 2))
    assert both == pytest.approx(0.100 + 0.032 - 0.030)


def test_a_time_of_all_tokens_is_that_of_one_times_their_number(tmp_path: Path) -> None:
    model = read(tmp_path, "m,h,128,1,128,30,920,955,8")
    assert model.step_time_s(StepWork(0, 5)) == pytest.approx(0.920 / 128)


def test_what_is_not_in_the_table_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no rows of m on h × 4; it has: m on h × 2, m on h × 8"):
        read(tmp_path, *ROWS, tensor_parallel_size=4)
    with pytest.raises(TraceError, match="row 3"):
        read(tmp_path, ROWS[0], "m,h,512,one,128,100,30,3910,8")
