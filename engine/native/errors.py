"""Why a step is not compiled: never a reason to stop serving, unless the configuration says so."""


class CompiledStepUnavailable(Exception):
    """The compiled step can't be had here; the text says what is missing, in one line."""
