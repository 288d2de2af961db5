"""The exception tree of the engine. ``str(error)``: what was wrong and what to change, in one line.

EngineError
├── CheckpointError            the model's files are missing, corrupt, or not the pinned ones
│   ├── MissingCheckpoint      there is no checkpoint at this path
│   ├── CorruptCheckpoint      a file is truncated, malformed or not the one that was written
│   ├── HashMismatch           the content isn't the pinned one
│   ├── SourceUnavailable      the source can't be reached, doesn't exist or isn't understood
│   │   └── TransferInterrupted  it broke off; a new attempt may succeed
│   ├── UnsupportedCheckpoint  a sound file of a kind the engine can't run
│   └── StoreUnavailable       the store's own folder can't be written
├── EngineConfigError          the configuration does not fit this model or this machine
├── EngineStartError           the step loop's process could not start
├── EngineDeadError            the step loop is gone, stuck or fails every step
├── WarmUpError                a made-up request failed, so real ones would
├── RequestError               one request can never be served here
├── CreditError                a gateway used or returned a credit that it does not hold
├── ProtocolError              a gateway sent what no gateway sends
├── CollectiveError            tensor-parallel ranks lost one another
├── ForgeUnavailable           no forge of the node starts this rank; a new interpreter does
├── CompiledStepUnavailable    this machine can't compile or run the compiled step; torch does
├── StepOutOfMemory            a step needs more memory than there is
├── KvMemoryError              there is no memory for the KV pool of a replica that wakes
├── OutputFileError            a result can't be written where it should be
├── ProfileFileError           a file is no performance profile
├── ReplayFileError            a file holds no requests to replay
└── RunnerError                a model runner broke the contract of ``engine.step``
    └── KvMismatchError        a sequence met KV that its own tokens did not write

Those below ``CheckpointError`` are declared in ``engine.checkpoints.errors``.
"""


class EngineError(Exception):
    """Base of everything that the engine raises on purpose."""


class CheckpointError(EngineError):
    """The model's files are missing, corrupt, or not the pinned ones."""


class EngineConfigError(EngineError):
    """The configuration does not fit this model or this machine (context, memory, device)."""


class EngineStartError(EngineError):
    """The engine could not start; the text is one line that says what to change."""


class EngineDeadError(EngineError):
    """The step loop is gone, stuck or fails every step: the replica must be replaced."""


class WarmUpError(EngineError):
    """The engine failed on a made-up request, so it would fail on real ones."""


class RequestError(EngineError):
    """One request can never be served here; the text is fit for a client."""


class CreditError(EngineError):
    """A gateway used or returned a credit that it does not hold: its connection is closed."""


class ProtocolError(EngineError):
    """A gateway sent what no gateway sends: its connection is closed."""


class CollectiveError(EngineError):
    """A tensor-parallel rank is gone or stuck: the others can't go on without its part."""


class CompiledStepUnavailable(EngineError):
    """The compiled step can't be had here; the text says what is missing, in one line. Never a
    reason to stop serving, unless the configuration says so."""


class StepOutOfMemory(EngineError):
    """A step needs more memory than there is; the runner may have carried out any part of its plan,
    but can go on with another one that releases every slot."""


class KvMemoryError(EngineError):
    """There is no memory for the KV pool of a replica that wakes: it stays asleep, and may try
    again; the text says how much is missing, in one line."""


class RunnerError(EngineError):
    """A model runner broke the contract of ``engine.step``."""


class KvMismatchError(RunnerError):
    """A sequence met KV that its own tokens did not write: a fault of planning."""
