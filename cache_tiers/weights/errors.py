"""What can go wrong with weights on their way.

WeightsError
├── NoRoom           memory or disk: another rung may still be had
├── OriginFailed     one place that they should come from: the next one is asked
│   └── AbsentError  it doesn't have them
└── WrongWeights     not what the order, the manifest or a pin says: asking elsewhere doesn't help
"""


class WeightsError(Exception):
    """One line that says what was wrong and what to do."""


class NoRoom(WeightsError):
    """Too little memory, or too little room on the disk."""


class OriginFailed(WeightsError):
    """A peer, a disk or a source that is gone, stalls, or sends what can't be right."""


class AbsentError(OriginFailed):
    """Not there: nothing went wrong."""


class WrongWeights(WeightsError):
    """Whole, but not the weights that were ordered."""
