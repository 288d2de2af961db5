"""What `headwater models list` and `inspect` say, as text and as JSON.

Decimal units (1 GB = 10^9 bytes) beside exact numbers. Knows the size of a model, not how it is
brought or run.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from deployments.device_plan import DevicePlan
from engine.checkpoints.inventory import StoredModel
from engine.messages import SamplingDefaults
from engine.model_size import ModelSize

_UNITS = ("", "k", "M", "G", "T")
_REVISION_CHARS = 12


@dataclass(frozen=True, slots=True)
class Fit:
    """How many requests of one length fit."""

    context_tokens: int
    request_kv_bytes: int
    num_requests: int | None
    """None if no memory was given."""


@dataclass(frozen=True, slots=True)
class ModelReport:
    """Everything that `inspect` prints."""

    model: str
    source: str | None
    revision: str | None
    """Hash of the weights, where they are here."""
    architecture: str
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_context_tokens: int
    sliding_window_tokens: int | None
    dtype: str
    num_parameters: int
    weight_bytes: int
    stored_weight_bytes: int | None
    """Of the weights as they lie on the disk, where they do."""
    kv_token_bytes: int
    memory_bytes: int | None
    fits: list[Fit]
    plan: DevicePlan | None
    """On devices, where they were asked for."""
    eos_token_ids: list[int]
    has_chat_template: bool | None
    """None if it can't be told from what was looked at."""
    sampling_defaults: dict[str, float]


def fits_of(
    size: ModelSize,
    contexts: Sequence[int],
    memory_bytes: int | None,
    *,
    block_size_tokens: int,
) -> list[Fit]:
    """One `Fit` per context; memory that holds weights and KV, and nothing else."""
    return [
        Fit(
            context,
            size.request_kv_bytes(context, block_size_tokens),
            None
            if memory_bytes is None
            else size.num_requests(memory_bytes, context, block_size_tokens),
        )
        for context in contexts
    ]


def said_defaults(defaults: SamplingDefaults) -> dict[str, float]:
    """Without what the makers leave open."""
    values: dict[str, Any] = msgspec.structs.asdict(defaults)
    return {key: value for key, value in values.items() if value is not None}


def render_report(report: ModelReport) -> str:
    """Several lines of text."""
    window = report.sliding_window_tokens
    rows = [
        ("source", report.source),
        ("revision", report.revision),
        ("architecture", _architecture(report)),
        ("context", f"{report.max_context_tokens:,} tokens"),
        ("sliding window", None if window is None else f"{window:,} tokens"),
        ("vocabulary", f"{report.vocab_size:,} tokens"),
        ("parameters", amount(report.num_parameters)),
        ("weights", f"{amount(report.weight_bytes, 'B')} as {report.dtype}"),
        ("on disk", _optional_bytes(report.stored_weight_bytes)),
        ("KV per token", f"{amount(report.kv_token_bytes, 'B')} as {report.dtype}"),
        ("end tokens", ", ".join(map(str, report.eos_token_ids)) or "none"),
        ("chat template", {True: "yes", False: "no", None: None}[report.has_chat_template]),
        ("sampling", _defaults(report.sampling_defaults)),
    ]
    lines = [report.model, *(f"  {key:<15} {value}" for key, value in rows if value is not None)]
    table = _fit_lines(report) if report.plan is None else plan_lines(report.plan)
    return "\n".join([*lines, "", *table])


def render_list(models: Sequence[StoredModel]) -> str:
    """A table, and below it what is wrong with the models that are marked."""
    rows = [("NAME", "SOURCE", "SIZE", "ARCHITECTURE", "REVISION")]
    for model in models:
        fields = list_fields(model)
        rows.append(
            (
                model.name,
                model.source or "-",
                short_amount(model.num_bytes, "B"),
                fields["architecture"] or "-",
                (fields["revision"] or "DAMAGED")[:_REVISION_CHARS],
            )
        )
    problems = [f"{model.name}: {model.problem}" for model in models if model.problem]
    return "\n".join([*_table(rows), *([""] if problems else []), *problems])


def list_fields(model: StoredModel) -> dict[str, Any]:
    """One model of the list for JSON."""
    checkpoint = model.checkpoint
    architecture = None if checkpoint is None else checkpoint.config.get("model_type")
    return {
        "name": model.name,
        "source": model.source,
        "bytes": model.num_bytes,
        "architecture": architecture if isinstance(architecture, str) else None,
        "revision": None if checkpoint is None else checkpoint.revision,
        "path": None if checkpoint is None else str(checkpoint.path),
        "problem": model.problem,
    }


def amount(number: int, unit: str = "") -> str:
    """Rounded and exact: ``131.1 kB (131,072)``."""
    exact = f"{number:,}"
    return exact if number < 1000 else f"{short_amount(number, unit)} ({exact})"


def short_amount(number: int, unit: str = "") -> str:
    """Rounded to one decimal: ``131.1 kB``."""
    value = float(number)
    prefixes = iter(_UNITS)
    prefix = next(prefixes)
    while value >= 999.95 and prefix != _UNITS[-1]:
        value, prefix = value / 1000, next(prefixes)
    return f"{value:.1f} {prefix}{unit}".rstrip() if prefix else f"{number} {unit}".rstrip()


def _architecture(report: ModelReport) -> str:
    return (
        f"{report.architecture}, {report.num_layers} layers, {report.num_heads} heads of "
        f"{report.head_dim}, {report.num_kv_heads} of keys and values"
    )


def _optional_bytes(num_bytes: int | None) -> str | None:
    return None if num_bytes is None else amount(num_bytes, "B")


def _defaults(defaults: dict[str, float]) -> str:
    return ", ".join(f"{key} {value:g}" for key, value in defaults.items()) or "no recommendation"


def _fit_lines(report: ModelReport) -> list[str]:
    rows = [("CONTEXT", "KV OF A REQUEST", "")]
    if report.memory_bytes is not None:
        memory = short_amount(report.memory_bytes, "B")
        rows = [("CONTEXT", "KV OF A REQUEST", f"REQUESTS IN {memory} BESIDE THE WEIGHTS")]
    for fit in report.fits:
        count = "" if fit.num_requests is None else f"{fit.num_requests:,}"
        rows.append((f"{fit.context_tokens:,}", amount(fit.request_kv_bytes, "B"), count))
    lines = [f"  {line}" for line in _table(rows)]
    if any(fit.context_tokens > report.max_context_tokens for fit in report.fits):
        lines.append(f"  The model itself goes to {report.max_context_tokens:,} tokens.")
    if report.memory_bytes is not None and report.memory_bytes < report.weight_bytes:
        lines.append("  Not even the weights fit.")
    return lines


def plan_lines(plan: DevicePlan) -> list[str]:
    """What lies on each device and on all, then how many requests run at once."""
    size = plan.tensor_parallel_size
    device = plan.gpu or "device"
    lines = [f"  {size} x {device}" + _usable_text(plan)]
    rows = [("", "EACH", f"ALL {size}")]
    for name, num_bytes in (
        ("weights", plan.weight_bytes),
        ("workspace", plan.workspace_bytes),
        ("KV pool", plan.kv_pool_bytes),
    ):
        rows.append((name, amount(num_bytes, "B"), amount(size * num_bytes, "B")))
    lines += [f"  {line}" for line in _table(rows)]
    lines.append(
        f"  workspace of a step of {plan.max_num_batched_tokens:,} tokens and "
        f"{plan.max_num_seqs:,} sequences, the longest of {plan.longest_context_tokens:,}"
    )
    if plan.missing_bytes:
        return [*lines, f"  {_missing_text(plan)}"]
    if not plan.kv_pool_bytes:
        return [*lines, "  name a device with --gpu, or memory for KV with --kv-memory"]
    fits = [("CONTEXT", "KV OF A REQUEST", "REQUESTS AT ONCE", "LIMIT")]
    for fit in plan.fits:
        kv_bytes = amount(fit.request_kv_bytes, "B")
        fits.append((f"{fit.context_tokens:,}", kv_bytes, f"{fit.num_requests:,}", fit.limit))
    return [*lines, "", *(f"  {line}" for line in _table(fits))]


def _usable_text(plan: DevicePlan) -> str:
    if plan.usable_bytes is None or plan.device_bytes is None:
        return ""
    usable, whole = short_amount(plan.usable_bytes, "B"), short_amount(plan.device_bytes, "B")
    return f", {usable} of {whole} used of each"


def _missing_text(plan: DevicePlan) -> str:
    device = "the device is" if plan.tensor_parallel_size == 1 else "each device is"
    text = f"Does not fit: {device} {amount(plan.missing_bytes, 'B')} too small"
    if not plan.sizes_that_fit:
        return f"{text}, and no --tp is large enough."
    return f"{text}: use --tp {min(plan.sizes_that_fit)}."


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
