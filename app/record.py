"""What the log line and the metrics of a request need; never prompts, answers or keys."""

import secrets
import time
from dataclasses import dataclass, field
from typing import NamedTuple

import orjson
from starlette.types import Scope

from app.transfers import ExpectedTransfer, Transfer
from engine.messages import RestoredTokens, ServiceClass

_SCOPE_KEY = "headwater.request"

RESTORED_MEDIA = ("host", "disk", "peer", "object_store")
"""Fields of ``RestoredTokens``."""

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
"""A client may send any word as a method."""


@dataclass(slots=True)
class Outlook:
    """Of a request's prompts together, at the engines that answered them."""

    cached_tokens: int = 0
    """Prompt tokens found on the accelerator, and brought to it."""
    first_token_s: float = 0.0
    """From the submission to the first token."""


class TransferOutcome(NamedTuple):
    """Of a prompt whose beginning was to be loaded."""

    expected: ExpectedTransfer
    actual: Transfer | None
    """None: nothing came."""


@dataclass(slots=True, eq=False)
class RequestRecord:
    """Filled in as the request goes on; each field by whoever learns it."""

    method: str
    request_id: str
    """Made here, unique in the fleet: the id of answer, engine request and error."""
    client_request_id: str | None = None
    """The client's own, sanitised; only echoed and logged."""
    started_s: float = field(default_factory=time.monotonic)
    route: str = "unknown"
    status: int | None = None
    error: str | None = None
    model: str | None = None
    is_stream: bool = False
    service_class: ServiceClass | None = None
    """None for requests that no engine is for."""
    service_tier: str | None = None
    """As the answer names it, if the client asked for one."""
    tokenizing_s: float | None = None
    """Spent on the prompts, the wait for a thread included."""
    tokenized_s: float | None = None
    """When it was done, by the monotonic clock."""
    engine_id: str | None = None
    num_attempts: int = 0
    """Of the prompt that needed most."""
    num_submissions: int = 0
    """To engines, of all prompts."""
    num_retries: int = 0
    """Those after an engine that was lost."""
    num_moves: int = 0
    """Times that engines gave prompts up as they left or went to sleep."""
    predicted: Outlook = field(default_factory=Outlook)
    """By the router. Only what the engines confirmed or refuted since: see ``actual``."""
    actual: Outlook = field(default_factory=Outlook)
    """Of the same prompts as ``predicted``."""
    transfers: list[TransferOutcome] = field(default_factory=list)
    """Of the prompts' last submissions."""
    restored: dict[str, int] = field(default_factory=dict)
    """By medium, prompt tokens that came from outside of the accelerators."""
    queue_wait_s: float | None = None
    ttft_s: float | None = None
    """A stream's when the socket had taken it, else when the engine's token came."""
    tpot_s: float | None = None
    """Mean time per output token after the first, of the slowest prompt's longest sample; by the
    same stamps.
    """
    finish_reason: str | None = None
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_completion_tokens: int = 0

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.started_s

    def note_tokenized(self, begun_s: float) -> None:
        """The prompts are tokens now; ``begun_s``: since when, by the monotonic clock."""
        self.tokenized_s = time.monotonic()
        self.tokenizing_s = self.tokenized_s - begun_s

    def log_line(self) -> str:
        """One JSON object."""
        kind = self.service_class
        line = {
            "event": "request",
            "request_id": self.request_id,
            "client_request_id": self.client_request_id,
            "method": self.method,
            "route": self.route,
            "status": self.status,
            "error": self.error,
            "model": self.model,
            "stream": self.is_stream,
            "service_class": None if kind is None else kind.name.lower(),
            "engine_id": self.engine_id,
            "attempts": self.num_attempts,
            "retries": self.num_retries,
            "moves": self.num_moves or None,
            "tokenizing_ms": _ms(self.tokenizing_s),
            "queue_wait_ms": _ms(self.queue_wait_s),
            "ttft_ms": _ms(self.ttft_s),
            "tpot_ms": _ms(self.tpot_s),
            "total_ms": _ms(self.elapsed_s),
            "finish_reason": self.finish_reason,
            "prompt_tokens": self.num_prompt_tokens,
            "cached_tokens": self.num_cached_tokens,
            "restored_tokens": self.restored or None,
            "source": ",".join(sorted({t.expected.kind for t in self.transfers})) or None,
            "predicted_cached_tokens": self.predicted.cached_tokens,
            "completion_tokens": self.num_completion_tokens,
        }
        return orjson.dumps(
            {key: value for key, value in line.items() if value is not None}
        ).decode()

    def add_restored(self, restored: RestoredTokens) -> None:
        """Of one prompt."""
        for medium in RESTORED_MEDIA:
            num_tokens: int = getattr(restored, medium)
            if num_tokens > 0:
                self.restored[medium] = self.restored.get(medium, 0) + num_tokens


def create_record(scope: Scope) -> RequestRecord:
    """With an id that begins as OpenAI's do for the scope's path."""
    path: str = scope["path"]
    is_text = path.endswith("/completions") and not path.endswith("/chat/completions")
    prefix = "cmpl" if is_text else "chatcmpl"
    method = scope["method"] if scope["method"] in _METHODS else "other"
    return RequestRecord(method, f"{prefix}-{secrets.token_hex(12)}")


def attach_record(scope: Scope, record: RequestRecord) -> None:
    scope[_SCOPE_KEY] = record


def record_of(scope: Scope) -> RequestRecord:
    """Precondition: the request came through ``app.middleware``."""
    record = scope[_SCOPE_KEY]
    assert isinstance(record, RequestRecord)
    return record


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 2)
