"""Who uses which folder of one model, and until when. Pure: time is an argument."""

from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class _Lease:
    folder: str
    """Empty: there was none yet."""
    until_s: float


class Leases:
    """Of one model. A holder has one lease."""

    def __init__(self) -> None:
        self._leases: dict[str, _Lease] = {}
        self._kept: dict[str, list[float]] = {}
        self._pins: Counter[str] = Counter()

    def keep(self, folder: str, until_s: float) -> None:
        """For one who has been told of ``folder`` and takes a lease soon."""
        self._kept.setdefault(folder, []).append(until_s)

    def pin(self, folder: str) -> None:
        """Its owner reads it, until as many ``unpin``. Nobody's lease."""
        self._pins[folder] += 1

    def unpin(self, folder: str) -> None:
        self._pins[folder] -= 1
        if not self._pins[folder]:
            del self._pins[folder]

    def __len__(self) -> int:
        return len(self._leases)

    def take(self, holder: str, folder: str, until_s: float) -> str:
        """Take or renew; who renews keeps the folder that it has, and who takes gets one that was
        kept, if there is any, or ``folder``. Returns that."""
        held = self._leases.get(holder)
        if held is not None and held.folder:
            folder = held.folder
        elif self._kept:
            # It was told of a folder, which another may have replaced since.
            folder = folder if folder in self._kept else next(iter(self._kept))
            self._kept[folder].pop(0)
            if not self._kept[folder]:
                del self._kept[folder]
        self._leases[holder] = _Lease(folder, until_s)
        return folder

    def release(self, holder: str) -> bool:
        """Whether it held one."""
        return self._leases.pop(holder, None) is not None

    def expire(self, now_s: float) -> bool:
        """Drop those that nobody renewed; whether there were any."""
        over = [holder for holder, lease in self._leases.items() if lease.until_s <= now_s]
        for holder in over:
            del self._leases[holder]
        for folder, ends in list(self._kept.items()):
            self._kept[folder] = [end for end in ends if end > now_s]
            if not self._kept[folder]:
                del self._kept[folder]
        return bool(over)

    def hold(self, folder: str) -> bool:
        """Whether somebody uses ``folder``, or will at once."""
        is_used = any(lease.folder == folder for lease in self._leases.values())
        return is_used or bool(self._kept.get(folder)) or folder in self._pins
