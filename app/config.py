"""The gateway's section of the configuration: frozen, unknown keys are errors, units in names."""

import re
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from app.requests.service_class import ClassName

MIB = 1024 * 1024

HASHED_KEY_PREFIX = "sha256:"


class ModelRoute(BaseModel):
    """A model that clients may ask for."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1, max_length=200)
    """What clients send as `model`; the model's application is called the same."""
    aliases: tuple[str, ...] = ()
    """Other names for the same model; answers carry ``name``."""


class PoolConfig(BaseModel):
    """Replicas for one kind of requests, so that all others hardly notice them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    replica_share: float = Field(default=0.25, ge=0, lt=1)
    """So much of each model's replicas is for them, one at least if there are two. Others use them
    while none of these requests runs there. 0: none; then they go where they are lent a place."""
    max_samples_per_replica: int | None = Field(default=None, ge=1)
    """Most of their samples on such a replica at a time; as many as it takes if absent."""
    max_lent_samples: int = Field(default=0, ge=0)
    """Most of their samples on a replica of all others at a time. All gateways together keep to
    it, but each may have one. One if they have no replica of their own."""


class PoolsConfig(BaseModel):
    """Kinds of requests that have replicas of their own; off unless configured."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    batch: PoolConfig | None = None
    """For requests of the class batch."""
    long_prompts: PoolConfig | None = None
    """For other requests whose prompts are long."""
    long_prompt_tokens: int = Field(default=2000, ge=1)
    """So many tokens that are cached nowhere make a prompt long."""


class GatewayConfig(BaseModel):
    """How the HTTP edge behaves; all of it may change at run time."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    models: tuple[ModelRoute, ...] = ()
    """In the order of ``/v1/models``. A model without a ready replica is "loading"."""
    api_keys: tuple[str, ...] = Field(default=(), repr=False)
    """Accepted keys, plain or as ``sha256:`` and 64 hex digits. Empty: no authentication."""
    admin_keys: tuple[str, ...] = Field(default=(), repr=False)
    """Keys that are accepted everywhere, and the only ones for ``/debug`` and ``/metrics/targets``
    once any key is configured.
    """
    default_class: ClassName = "standard"
    """Class of requests that ask for none, or for ``service_tier: auto``."""
    max_queue_len: int = Field(default=1024, ge=1)
    """Waiting requests per model. One more takes the place of the last one of a lower class, or is
    refused with 503 and the estimated wait as ``retry-after``."""
    max_queue_wait_s: float = Field(default=30.0, gt=0)
    """Longest wait for an engine, then 504. Standard requests may wait 10 s longer, batch 60 s: so
    long others overtake them. After half of it a request takes the first free engine. One that
    would wait longer by estimate is refused at once with 503."""
    request_timeout_s: float = Field(default=600.0, gt=0)
    """Longest time from arrival to the last token."""
    max_body_bytes: int = Field(default=8 * MIB, ge=1)
    """A larger request body is refused with 413."""
    max_fanout: int = Field(default=16, ge=1)
    """Most answers of one request: its prompts times ``n`` or ``best_of``; more are refused."""
    slow_client_buffer_bytes: int = Field(default=MIB, ge=1)
    """What may wait for a client that reads slowly; beyond it the stream is cut."""
    tokenize_off_loop_chars: int = Field(default=4000, ge=0)
    """Requests with a longer body are templated and tokenized in a thread."""
    sse_keep_alive_s: float = Field(default=15.0, gt=0)
    """Gap after which an idle stream gets a comment, so that proxies keep it open."""
    prefix_index_max_bytes: int = Field(default=512 * MIB, ge=1024)
    """Bound of each model's prefix index, of which it takes only what its keys need. A key stands
    for 128 tokens and takes up to 224 bytes with 64 replicas, 24 more with each 64 others. Half of
    the bound keeps the most recently used keys; what more there is may be forgotten."""
    cells_per_gateway: int | None = Field(default=None, ge=1)
    """A model's replicas beyond 64 are split into cells of so many at most; a gateway connects to
    this many cells, to all if absent. All gateways together must reach every cell, or replicas
    stand idle: a warning says so. A session should come to the same gateway again."""
    pools: PoolsConfig = PoolsConfig()
    """Replicas of their own for batch work and long prompts, see below."""

    @model_validator(mode="after")
    def _check_keys_and_names(self) -> Self:
        _check_keys("api_keys", self.api_keys)
        _check_keys("admin_keys", self.admin_keys)
        names = [name for route in self.models for name in (route.name, *route.aliases)]
        if len(set(names)) != len(names):
            twice = sorted({name for name in names if names.count(name) > 1})
            raise ValueError(f"models: names and aliases must differ; used twice: {twice}")
        return self


def _check_keys(name: str, keys: tuple[str, ...]) -> None:
    """Raises ``ValueError``, without the key in it, for one that no request could match."""
    for position, key in enumerate(keys):
        if key.startswith(HASHED_KEY_PREFIX):
            if not re.fullmatch(r"[0-9a-f]{64}", key.removeprefix(HASHED_KEY_PREFIX)):
                raise ValueError(
                    f"{name}[{position}]: write 64 lower-case hex digits after 'sha256:'"
                )
        elif not key or not key.isascii() or key.strip() != key:
            raise ValueError(f"{name}[{position}]: must be ASCII text without outer spaces")
