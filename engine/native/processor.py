"""What this machine's processor can run, as the kernel tells it. Imports no torch."""

import platform
from dataclasses import dataclass
from pathlib import Path

NEEDED_FLAGS = ("avx512f", "avx512bw", "avx512vl", "avx512dq")
_CPUINFO = Path("/proc/cpuinfo")


@dataclass(frozen=True, slots=True)
class Processor:
    """Of the machine that a library is compiled for."""

    system: str
    """Such as ``Linux``."""
    architecture: str
    """Such as ``x86_64``."""
    flags: frozenset[str] = frozenset()
    """Instruction sets, in the kernel's names."""

    def reason_against(self) -> str | None:
        """Why the compiled step can't run on it."""
        if (self.system, self.architecture) != ("Linux", "x86_64"):
            return f"it is made for Linux on x86_64, not for {self.system} on {self.architecture}"
        missing = [flag for flag in NEEDED_FLAGS if flag not in self.flags]
        return f"this processor has no {', '.join(missing)}" if missing else None


def this_processor(cpuinfo: Path = _CPUINFO) -> Processor:
    """Flags that the kernel does not tell count as absent."""
    flags = frozenset(_first_value("flags", cpuinfo).split())
    return Processor(platform.system(), platform.machine(), flags)


def processor_name(cpuinfo: Path = _CPUINFO) -> str:
    """For people."""
    return _first_value("model name", cpuinfo) or platform.processor() or platform.machine()


def _first_value(key: str, cpuinfo: Path) -> str:
    """Of the first processor; empty if the kernel does not tell."""
    try:
        lines = cpuinfo.read_text("ascii", "replace").splitlines()
    except OSError:
        return ""
    found = next((line for line in lines if line.startswith(key)), "")
    return found.partition(":")[2].strip()
