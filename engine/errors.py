"""The exception tree of the engine. ``str(error)``: what was wrong and what to change, in one line.

EngineError
├── CheckpointError      the model's files are missing, corrupt, or not the pinned ones
├── EngineConfigError    the configuration does not fit this model or this machine
├── RequestError         one request can never be served here
└── RunnerError          a model runner broke the contract of ``engine.step``
    └── KvMismatchError  a sequence met KV that its own tokens did not write
"""


class EngineError(Exception):
    """Base of everything that the engine raises on purpose."""


class CheckpointError(EngineError):
    """The model's files are missing, corrupt, or not the pinned ones."""


class EngineConfigError(EngineError):
    """The configuration does not fit this model or this machine (context, memory, device)."""


class RequestError(EngineError):
    """One request can never be served here; the text is fit for a client."""


class RunnerError(EngineError):
    """A model runner broke the contract of ``engine.step``."""


class KvMismatchError(RunnerError):
    """A sequence met KV that its own tokens did not write: a fault of planning."""
