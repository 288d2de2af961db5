"""Writes docs/capacity.md: ``python -m benchmarks.capacity``.

The page is the design case's arithmetic (`benchmarks.design_case`) over what `benchmarks/results/`
holds. A figure whose result file is not there is said to be missing, never filled in.
"""

import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from app.config import GatewayConfig
from app.routing.index import BYTES_PER_KEY
from benchmarks.design_case import (
    KEY_TOKENS,
    ChannelCost,
    DesignCase,
    GatewayCost,
    Gateways,
    frame_bytes,
    key_event_bytes,
    submit_bytes,
)
from benchmarks.machine import REPOSITORY
from benchmarks.result import read_result

RESULTS = REPOSITORY / "benchmarks" / "results"
_MISSING = "not measured yet"


@dataclass(frozen=True, slots=True)
class Measured:
    """What the result files say; None where there is no file."""

    prompt_ms: float
    token_us: float
    added_ttft_ms: float
    channel_64: float | None
    channel_256: float | None
    submit_p99_ms: float | None
    hits_ratio: float | None

    @classmethod
    def of(cls, folder: Path) -> "Measured":
        """Raises `ResultError` for a file of another shape, KeyError for one without a case."""
        tokenizing = _values(folder / "tokenizing.json")
        wire = _optional_values(folder / "wire.json")
        fleet = _optional_values(folder / "fleet.json")
        return cls(
            prompt_ms=tokenizing["prompt_3k_new"],
            token_us=tokenizing["detokenizing_per_token"],
            added_ttft_ms=_values(folder / "chain.json")["c1_ttft_p50_added"],
            channel_64=None if wire is None else wire["saturated_64_streams"],
            channel_256=None if wire is None else wire["saturated_256_streams"],
            submit_p99_ms=None if wire is None else wire["load_150k_submit_p99"],
            hits_ratio=None if fleet is None else fleet["prefix_hits_ratio"],
        )

    @property
    def gateway_cost(self) -> GatewayCost:
        channel = None
        if self.channel_64 is not None and self.channel_256 is not None:
            channel = ChannelCost.between((64, self.channel_64), (256, self.channel_256))
        return GatewayCost(self.prompt_ms / 1e3, self.token_us / 1e6, channel)


def render(measured: Measured) -> str:
    """The whole page."""
    case = DesignCase()
    gateways = case.gateways(measured.gateway_cost)
    sections = [
        _introduction(case),
        _measured_section(measured),
        _assumptions(case),
        _nodes(case),
        _sensitivity(case, measured.gateway_cost),
        _gateway_section(case, measured.gateway_cost, gateways),
        _index_and_network(case, gateways),
        _limits(case, measured.gateway_cost, gateways),
    ]
    return "\n".join(sections)


def _introduction(case: DesignCase) -> str:
    return f"""\
# Capacity of the design case

What {case.requests_per_s:,.0f} requests/s of {case.prompt_tokens:,} prompt and \
{case.output_tokens} output tokens take on {case.num_replicas} replicas of a
70B model, each on one node of 8 GPUs. `make docs` writes this page from the result files and
`benchmarks/design_case.py`; change an assumption there and read what follows.

No accelerator was measured: what a node can do is published peaks times an assumed share of them.
Gateways were measured on one CPU core, so their figures are cores, to be scaled by a machine's own.
"""


def _measured_section(measured: Measured) -> str:
    def figure(value: float | None, form: str, unit: str) -> str:
        return _MISSING if value is None else f"{value:{form}} {unit}".rstrip()

    rows = [
        ("Prompt of 3k tokens: template, tokens, keys", figure(measured.prompt_ms, ".2f", "ms"),
         "tokenizing.json: prompt_3k_new"),
        ("Text of one output token", figure(measured.token_us, ".2f", "µs"),
         "tokenizing.json: detokenizing_per_token"),
        ("HTTP, gateway and channel in the TTFT, idle", figure(measured.added_ttft_ms, ".1f", "ms"),
         "chain.json: c1_ttft_p50_added"),
        ("Channel, 64 deltas a frame, both ends on one core",
         figure(measured.channel_64, ",.0f", "deltas/s"), "wire.json: saturated_64_streams"),
        ("Channel, 256 deltas a frame", figure(measured.channel_256, ",.0f", "deltas/s"),
         "wire.json: saturated_256_streams"),
        ("Submit p99 under 150,000 deltas/s", figure(measured.submit_p99_ms, ".2f", "ms"),
         "wire.json: load_150k_submit_p99"),
        ("Predicted over actual prefix hits", figure(measured.hits_ratio, ".3f", ""),
         "fleet.json: prefix_hits_ratio"),
        ("A key of the prefix index", f"{BYTES_PER_KEY} bytes, at most",
         "app/routing/index.py: BYTES_PER_KEY, held by a test"),
    ]  # fmt: skip
    return "## Measured\n\n" + _table(("figure", "value", "source"), rows)


def _assumptions(case: DesignCase) -> str:
    flops, bandwidth = case.flops_efficiency, case.bandwidth_efficiency
    rows = [
        ("Prefix hit share `h`", f"{case.prefix_hit_share:.0%}", "30 to 80 %",
         "chat sessions resend their past; depends on how long it stays cached"),
        ("Share of peak operations in prefill", f"{flops:.0%}", "35 to 60 %",
         "peak: 8 × 989 TFLOP/s of dense bfloat16 (NVIDIA H100 SXM datasheet)"),
        ("Share of peak bandwidth in decode", f"{bandwidth:.0%}", "45 to 75 %",
         "peak: 8 × 3.35 TB/s (the same); collectives and gaps of the host are in it"),
        ("Mean time per output token to plan for", f"{case.tpot_target_s * 1e3:.0f} ms",
         "25 to 35 ms", "below the promised 40 ms of the p99"),
        ("TTFT", f"{case.ttft_s:.1f} s", "0.2 to 0.7 s", "the promised p99, so an upper bound"),
        ("KV pool of a replica", f"{case.kv_pool_bytes / 1e9:.0f} GB", "400 to 430 GB",
         "configs/llama-70b-tp8.yaml"),
        ("Writing one token to a client", f"{case.stream_token_s * 1e6:.0f} µs of a core",
         "15 to 60 µs", "server-sent event and socket; not measured by itself"),
        ("Bytes of one token to a client", f"{case.stream_token_bytes} bytes", "200 to 300 bytes",
         "one event of a chat completion"),
        ("Load of a gateway's core", f"{case.core_load:.0%}", "50 to 70 %",
         "leaves room for bursts: latency grows with it"),
    ]  # fmt: skip
    return "## Assumed\n\n" + _table(("assumption", "taken", "range", "why"), rows)


def _nodes(case: DesignCase) -> str:
    tpot_s = case.tpot_s
    assert tpot_s is not None, "the design case fits its fleet"
    r = case.requests_per_replica_s
    per_replica = case.num_running / case.num_replicas
    rows = [
        ("Requests per replica", "`r = requests / replicas`", f"{r:.2f}/s"),
        ("Prefill rate of a replica", "`peak × share / (2 × parameters)`",
         f"{case.prefill_tokens_per_s:,.0f} tokens/s"),
        ("Prefill of a request", "`p = prompt × (1 − h) / rate`", f"{case.prefill_s * 1e3:.1f} ms"),
        ("Reading the weights", "`a = 2 bytes × parameters / bandwidth`",
         f"{case.weights_s * 1e3:.1f} ms"),
        ("Reading a sequence's KV", "`b = (prompt + n / 2) × bytes per token / bandwidth`",
         f"{case.sequence_s * 1e6:.0f} µs"),
        ("Time per output token", "`T = a / (1 − r (n b + p))`", f"{tpot_s * 1e3:.1f} ms"),
        ("Replicas for the planned T", "`requests (n b + p) / (1 − a / T)`",
         f"{case.num_replicas_needed:,} of {case.num_replicas}"),
        ("Running per replica (Little's law)", "`B = r n T`", f"{per_replica:.0f}"),
        ("Running in the fleet", "`requests × n × T`", f"{case.num_running:,.0f}"),
        ("Open requests", "`running + requests × TTFT`", f"{case.num_open:,.0f}"),
        ("KV of a full-grown request", f"`(prompt + n) × {case.kv_token_bytes:,} bytes`",
         f"{case.request_kv_bytes / 1e9:.2f} GB"),
        ("KV in use per replica, at most", "`B × KV of a request`",
         f"{per_replica * case.request_kv_bytes / 1e9:.0f} of {case.kv_pool_bytes / 1e9:.0f} GB"),
        ("Sequences the KV pool holds", "`pool / KV of a request`", f"{case.num_kv_sequences}"),
    ]  # fmt: skip
    return f"""\
## Nodes

A replica's devices take turns: a request takes `p` of them for its prefill, and in each of its
`n` = {case.output_tokens} steps `b`, while every step also takes `a`, whoever is in it.

{_table(("", "formula", "value"), rows)}"""


def _sensitivity(base: DesignCase, cost: GatewayCost) -> str:
    cases = [
        ("as assumed", base),
        ("no prefix hits", replace(base, prefix_hit_share=0.0)),
        ("prefix hit share 80 %", replace(base, prefix_hit_share=0.8)),
        ("lower shares of peak: 35 and 45 %",
         replace(base, flops_efficiency=0.35, bandwidth_efficiency=0.45)),
        ("a token costs the gateway 15 µs", replace(base, stream_token_s=15e-6)),
        ("a token costs the gateway 60 µs", replace(base, stream_token_s=60e-6)),
    ]  # fmt: skip
    rows = [
        (
            name,
            f"{case.num_replicas_needed:,}",
            "can't keep up" if case.tpot_s is None else f"{case.tpot_s * 1e3:.1f} ms",
            f"{case.num_open:,.0f}",
            f"{case.gateways(cost).num_gateways}",
        )
        for name, case in cases
    ]
    head = ("", "replicas for the planned T", f"T on {base.num_replicas}", "open", "gateways")
    return "## What it depends on\n\n" + _table(head, rows)


def _gateway_section(case: DesignCase, cost: GatewayCost, gateways: Gateways) -> str:
    channel = _MISSING
    channel_formula = "`tokens/s × (c + f / deltas per frame)`"
    if cost.channel is not None and gateways.channel_cores is not None:
        channel = f"{gateways.channel_cores:.1f} cores"
        channel_formula += (
            f" with c = {cost.channel.delta_s * 1e6:.1f} µs per delta and "
            f"f = {cost.channel.frame_s * 1e6:.0f} µs per frame"
        )
    prompt_formula = f"`{case.requests_per_s:,.0f}/s × {cost.prompt_s * 1e3:.2f} ms`"
    token_formula = f"`{case.tokens_per_s:,.0f} tokens/s × {cost.token_s * 1e6:.2f} µs`"
    stream_formula = f"`tokens/s × {case.stream_token_s * 1e6:.0f} µs` (assumed)"
    rows = [
        ("Prompts: template, tokens, keys", prompt_formula, f"{gateways.prompt_cores:.1f} cores"),
        ("Text of the answers", token_formula, f"{gateways.text_cores:.1f} cores"),
        ("Events to clients", stream_formula, f"{gateways.stream_cores:.1f} cores"),
        ("Deltas per frame", "`S / (G (1 − (1 − 1/G)^S))`, S = running per replica",
         f"{gateways.deltas_per_frame:.2f}"),
        ("Channels, both ends", channel_formula, channel),
        ("Gateways, one core each", f"`G = cores / {case.core_load:.0%}`",
         f"{gateways.num_gateways}"),
        ("Client connections per gateway", "`open / G`",
         f"{case.num_open / gateways.num_gateways:,.0f}"),
        ("Channels per gateway", "`replicas`", f"{case.num_replicas}"),
        ("Channels of the fleet", "`G × replicas`",
         f"{gateways.num_gateways * case.num_replicas:,}"),
    ]  # fmt: skip
    without = "" if cost.channel is not None else " The channels are not in G, so it is too low."
    return f"""\
## Gateways

{_table(("", "formula", "value"), rows)}
`c` and `f` are the line through both measured points. A channel's ends were measured together, so
the part that is the replica's is counted here as well.{without}
"""


def _index_and_network(case: DesignCase, gateways: Gateways) -> str:
    bound = GatewayConfig().prefix_index_max_bytes
    index_bytes = case.num_index_keys * BYTES_PER_KEY
    bytes_up = case.requests_per_s * submit_bytes(case)
    frames_per_s = case.tokens_per_s / gateways.deltas_per_frame
    bytes_down = frames_per_s * frame_bytes(gateways.deltas_per_frame)
    event_bytes = 2 * case.new_keys_per_s * key_event_bytes()
    to_clients = case.tokens_per_s * case.stream_token_bytes
    rows = [
        ("Index keys, if nothing is held twice",
         f"`replicas × pool / (bytes of {KEY_TOKENS} tokens)`",
         f"{case.num_index_keys:,}"),
        ("Index bytes per gateway", f"`keys × {BYTES_PER_KEY} bytes`",
         f"{index_bytes / 1e9:.2f} GB; default bound: {bound / 1e6:.0f} MB per model"),
        ("Keys stored and evicted", f"`2 × requests × new tokens / {KEY_TOKENS}`",
         f"{2 * case.new_keys_per_s:,.0f}/s, to each gateway"),
        ("Requests to replicas", f"`requests × {submit_bytes(case):,} bytes`", _rate(bytes_up)),
        ("Deltas to gateways", f"`frames × {frame_bytes(gateways.deltas_per_frame):.0f} bytes`",
         _rate(bytes_down)),
        ("Cache events to one gateway", f"`keys × {key_event_bytes():.0f} bytes`",
         _rate(event_bytes)),
        ("Cache events to all", "`the same × G`", _rate(event_bytes * gateways.num_gateways)),
        ("Events to clients", f"`tokens/s × {case.stream_token_bytes} bytes`", _rate(to_clients)),
    ]  # fmt: skip
    return f"""\
## Index and network

The sizes of messages are those that msgpack gives such a message, without TCP's own.

{_table(("", "formula", "value"), rows)}"""


def _limits(case: DesignCase, cost: GatewayCost, gateways: Gateways) -> str:
    headroom = case.num_replicas / case.num_replicas_needed - 1
    channel = ""
    if cost.channel is not None:
        channel = (
            f" One delta per frame costs {1 + cost.channel.frame_s / cost.channel.delta_s:.1f} "
            "times what one of many does."
        )
    return f"""\
## Where the limit is

- **Nodes: compute, not memory.** {case.num_replicas} replicas have {headroom:.0%} to spare as \
assumed, and none without prefix hits;
  the KV pool holds {case.num_kv_sequences} requests where \
{case.num_running / case.num_replicas:.0f} run. Prefix hits are what the fleet's size hangs on.
- **Gateways: the events to clients**, which no benchmark here measures by itself yet. Tokenizing
  comes next, at {gateways.prompt_cores:.0f} cores.
- **A flat fleet: the fan-out.** With {gateways.num_gateways} gateways a step's frame carries \
{gateways.deltas_per_frame:.1f} deltas to each of them.{channel}
  Every gateway also follows the cache events of all replicas, and an index of all their keys is far
  above its default bound. Fleets of this size want cells: groups of up to 64 replicas with gateways
  of their own, which divide channels, events and index by \
{case.num_replicas / 64:.0f}: a fleet above 64 replicas is cut into them by itself, and
  `cells_per_gateway` says how many of them one gateway connects to.
"""


def _rate(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e6:,.0f} MB/s"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _values(path: Path) -> dict[str, float]:
    return {result.case: result.value for result in read_result(path).results}


def _optional_values(path: Path) -> dict[str, float] | None:
    return _values(path) if path.exists() else None


if __name__ == "__main__":
    sys.stdout.write(render(Measured.of(RESULTS)))
