"""What the process keeps of freed memory."""

import subprocess
import sys

import pytest

_PROGRAM = """
import resource, sys
import numpy as np
from engine.heap import keep_freed_memory
if sys.argv[1] == "keep" and not keep_freed_memory():
    sys.exit("not possible")
def faults():
    for _ in range(20):
        np.ones(2 << 20, np.float64).sum()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
first = faults()
print(faults() - first)
"""


def _num_faults(mode: str) -> int:
    result = subprocess.run(
        [sys.executable, "-c", _PROGRAM, mode],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if "not possible" in result.stderr:
        pytest.skip("the C library has no mallopt")
    return int(result.stdout)


def test_memory_that_is_used_again_is_not_mapped_again() -> None:
    # 20 arrays of 16 MiB have 81,920 pages of 4 KiB.
    assert _num_faults("keep") < 4096
