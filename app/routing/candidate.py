"""What the router knows of one replica, and what it decides: data only.

A prompt's KV may lie on a replica's accelerator, in the tiers of its node (CPU memory, NVMe) or
with a peer, and what lies nowhere is computed. ``Source`` says where a choice takes the beginning
of the prompt from. A gateway fills in what it knows; a simulator what its replicas would tell.

Of each decision there is one request, and a candidate per replica: they are structs, since one is
made in a tenth of the time that a frozen dataclass takes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol

import msgspec

from engine.messages import LoadView, ServiceClass


class SourceKind(StrEnum):
    """Where the longest part of the prefix comes from; the rest is computed."""

    LOCAL = "local"
    """Only what the replica's accelerator holds is used; that may be nothing."""
    HOST = "host"
    """What its node's CPU memory holds is loaded, too."""
    DISK = "disk"
    """And what its node's NVMe holds."""
    PEER = "peer"
    """What another replica holds is pulled over the network."""


class Source(NamedTuple):
    kind: SourceKind = SourceKind.LOCAL
    peer_id: str | None = None
    """The engine to pull from; only with ``PEER``."""


LOCAL = Source()


class HeldPrefix(msgspec.Struct, frozen=True, gc=False):
    """Tokens of a prompt, counted from its first, whose KV a replica has, by how far it must reach;
    each counts what lies nearer, too.
    """

    accelerator_tokens: int = 0
    host_tokens: int = 0
    disk_tokens: int = 0

    @property
    def longest(self) -> int:
        return max(self.accelerator_tokens, self.host_tokens, self.disk_tokens)


NOTHING_HELD = HeldPrefix()


@dataclass(frozen=True, slots=True)
class ReplicaRates:
    """How fast a replica computes and loads, as learned so far."""

    prefill_base_s: float = 0.0
    """Of every step, whatever it holds."""
    prefill_token_s: float = 0.0
    """Of each uncached token; 0 while unknown."""
    prefill_attended_s: float = 0.0
    """Of each uncached token and each position before it."""
    host_tokens_per_s: float = 0.0
    """From its node's CPU memory; 0: there is no such tier."""
    disk_tokens_per_s: float = 0.0
    peer_tokens_per_s: float = 0.0
    """Over the network, from any peer; 0: it cannot pull."""


NO_RATES = ReplicaRates()


class Gateways(NamedTuple):
    """Who else sends to the same replicas, and how much: of others' last requests a load view
    can't show those that are younger than itself.
    """

    rank: int = 0
    """Of the gateway that asks; different for each, modulo ``number``."""
    number: int = 1
    requests_per_s: float = 0.0
    """That each gateway sends, as far as this one can know: as many as itself."""
    uncached_tokens: float = 0.0
    """Of each of those, to be computed, on average."""


ALONE = Gateways()


class RouteRequest(msgspec.Struct, frozen=True, gc=False):
    """What of a request matters for where it goes."""

    num_prompt_tokens: int
    num_answer_tokens: int = 0
    """As expected; 0 while unknown."""
    service_class: ServiceClass = ServiceClass.STANDARD
    affinity: int | None = None
    """64 bits, equal for requests that belong together: a session, or a conversation's first
    blocks. None: it belongs to no others.
    """
    current: str | None = None
    """The engine that it waits for: among equals it stays."""
    rotation: int = 0
    """Differs from request to request, and from gateway to gateway; breaks ties."""
    gateways: Gateways = ALONE


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """One replica that could take the request, as seen now."""

    engine_id: str
    load: LoadView
    block_size_tokens: int
    held: HeldPrefix
    """Of this request's prompt."""
    num_in_flight: int
    """Samples of this gateway's requests that run or wait there."""
    num_unseen: int
    """Those of requests that ``load`` does not show yet, or that wait for it in this gateway."""
    num_unseen_tokens: int
    """Prompt tokens of those that were submitted, less those expected to be cached."""
    max_num_seqs: int
    """Samples that the engine runs side by side; 0 while unknown."""
    num_queued_tokens: int = 0
    """Whole prompts of those that wait in this gateway and go first."""
    rates: ReplicaRates = NO_RATES
    hit_probability: float = 1.0
    """That ``held`` is still true when the request gets there."""
    age_s: float = 0.0
    """Of ``load``: what other gateways sent since then is not in it."""
    can_lend: bool = True
    """Others can pull what it holds: its node has a cache."""
    pull_probability: float = 1.0
    """That it gets from a peer what is there."""

    @property
    def num_cached_tokens(self) -> int:
        """On its accelerator."""
        return self.held.accelerator_tokens


class Choice(NamedTuple):
    """``POST /v1/route`` tells both. An engine is told of a peer only: what it and its node hold it
    finds by itself.
    """

    candidate: Candidate
    source: Source = LOCAL


class Policy(Protocol):
    """Chooses among ``candidates``, of which there is at least one. Pure: no state, no clock."""

    def __call__(self, request: RouteRequest, candidates: Sequence[Candidate]) -> Choice: ...
