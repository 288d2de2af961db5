"""A trace that was named on a command line: which reader it takes is told by its name."""

from pathlib import Path

from simulator.errors import TraceError
from simulator.traces import read_agentic_coding, read_azure, read_mooncake
from simulator.workload import Workload


def read_trace(path: Path, *, sessions_per_s: float = 0.1) -> Workload:
    """Mooncake's .jsonl, Azure's .csv, or a folder of coding sessions, of which so many begin per
    second. Raises ``TraceError``."""
    if path.is_dir():
        return read_agentic_coding(path, sessions_per_s=sessions_per_s)
    if path.suffix == ".jsonl":
        return read_mooncake(path)
    if path.suffix == ".csv":
        return read_azure(path)
    if path.exists():
        raise TraceError(f"{path} is neither a .jsonl nor a .csv nor a folder: see --help")
    raise TraceError(f"{path} cannot be read: No such file or directory")
