"""What can be wrong with what a simulation is given."""


class SimulationError(Exception):
    """Root of the package's errors; says what was wrong and what to do."""


class TraceError(SimulationError):
    """A trace cannot be read; names the file and the row."""


class FleetSpecError(SimulationError):
    """No fleet can be made of these settings, or the workload does not fit it."""
