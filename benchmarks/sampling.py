"""Benchmark of sampling alone: ``python -m benchmarks.sampling --out FILE``.

Milliseconds of `Sampler.sample` for batches of random logits as a bfloat16 model gives them, with
exact logits of single tokens from the same random output matrix. The limit of a case is reading the
logits once (the maximum of each row), measured in the same run. Batches of 64 at SmolLM2's
vocabulary are also given as a share of its decode step.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.result import BenchmarkResult, CaseResult, ResultError, read_result
from benchmarks.statistics import percentile
from engine.heap import keep_freed_memory
from engine.messages import SamplingParams
from engine.sampling.sampler import Sampler
from engine.step import Admission

_SEED = 0
_BATCH_SIZES = (1, 16, 64)
_PROMPT_LEN, _ANSWER_LEN = 500, 100
_LOGIT_SCALE = 5.0
"""Standard deviation of the logits: the nucleus of 0.9 holds tens of tokens, as on text."""
_STEP_CASE = "decode_bs64_step"
_ENGINE_RESULT = Path(__file__).parent / "results" / "engine.json"
_MAX_SHARE_OF_STEP = 0.1


@dataclass(frozen=True, slots=True)
class _Model:
    """Shape of a model's output matrix."""

    name: str
    vocab_size: int
    hidden_size: int


_STEP_MODEL = _Model("smollm2-135m", 49_152, 576)
_MODELS = (_STEP_MODEL, _Model("gemma-3-270m", 262_144, 640))


def _every_filter(num_logprobs: int | None) -> SamplingParams:
    return SamplingParams(
        1,
        temperature=0.8,
        top_k=50,
        top_p=0.9,
        min_p=0.02,
        repetition_penalty=1.1,
        presence_penalty=0.2,
        frequency_penalty=0.2,
        logit_bias=tuple((token_id, 1.0) for token_id in range(0, 2000, 100)),
        num_logprobs=num_logprobs,
    )


_SAMPLING = {
    "greedy": SamplingParams(1, temperature=0.0),
    "greedy_logprobs_5": SamplingParams(1, temperature=0.0, num_logprobs=5),
    "temperature": SamplingParams(1, temperature=0.8),
    "top_p": SamplingParams(1, temperature=0.8, top_p=0.9),
    "wide_top_p": SamplingParams(1, temperature=3.0, top_p=0.95),
    "all_filters": _every_filter(num_logprobs=None),
    "all_filters_logprobs_5": _every_filter(num_logprobs=5),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; 0 if a result was written, 1 if not."""
    options = _parse_options(sys.argv[1:] if argv is None else argv)
    torch.set_num_threads(options.threads)
    keep_freed_memory()  # as the engine's process does
    try:
        step_ms = options.step_ms or _measured_step_ms()
        with torch.inference_mode():
            results = [
                result
                for model in _MODELS
                for result in _measure_model(model, options.device, options.runs, step_ms)
            ]
        BenchmarkResult.of_this_machine(
            name="sampling",
            config={
                "runs": options.runs,
                "threads": options.threads,
                "device": str(options.device),
                "step_ms": step_ms,
            },
            seed=_SEED,
            results=results,
        ).write(options.out)
    except (ResultError, OSError) as error:
        print(f"benchmarks.sampling: {error}", file=sys.stderr)
        return 1
    return 0


def _parse_options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sampling", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="result file to write")
    parser.add_argument("--runs", type=int, default=15, help="measurements of each case")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    parser.add_argument(
        "--step-ms",
        type=float,
        help=f"decode step of {_STEP_MODEL.name} at batch 64; if left out, as in {_ENGINE_RESULT}",
    )
    options = parser.parse_args(argv)
    if options.runs < 1 or options.threads < 1:
        parser.error("--runs and --threads must be at least 1")
    if options.step_ms is not None and options.step_ms <= 0:
        parser.error("--step-ms must be above 0")
    return options


def _measured_step_ms() -> float:
    for result in read_result(_ENGINE_RESULT).results:
        if result.case == _STEP_CASE:
            return result.value
    raise ResultError(f"{_ENGINE_RESULT} has no case {_STEP_CASE}: give --step-ms")


def _measure_model(
    model: _Model, device: torch.device, runs: int, step_ms: float
) -> list[CaseResult]:
    generator = torch.Generator().manual_seed(_SEED)
    head = torch.randn(model.vocab_size, model.hidden_size, generator=generator)
    head = (head * (_LOGIT_SCALE / model.hidden_size**0.5)).to(device, torch.bfloat16)
    results: list[CaseResult] = []
    for batch_size in _BATCH_SIZES:
        hidden = torch.randn(batch_size, model.hidden_size, generator=generator).to(device)
        logits = hidden.bfloat16() @ head.T
        for kind, sampling in _SAMPLING.items():
            sample = _sampling_work(logits, hidden, head, sampling)
            sample_ms, limit_ms = _interleaved_ms(sample, lambda: logits.amax(dim=-1), runs)  # noqa: B023 - called at once
            case = f"{kind}_bs{batch_size}_{model.name}"
            results.append(CaseResult(case=case, value=sample_ms, unit="ms", limit=limit_ms))
            print(f"{case:45} {sample_ms:8.2f} ms", end=" ")
            if model is _STEP_MODEL and batch_size == 64:
                share = sample_ms / step_ms
                results.append(
                    CaseResult(
                        case=f"{case}_of_step",
                        value=share,
                        unit="steps",
                        limit=_MAX_SHARE_OF_STEP,
                    )
                )
                print(f"{share:6.1%} of a step", end="")
            print(flush=True)
    return results


def _sampling_work(
    logits: Tensor, hidden: Tensor, head: Tensor, sampling: SamplingParams
) -> Callable[[], object]:
    """One call samples a token for every row."""
    batch_size, vocab_size = logits.shape
    past = np.random.default_rng(_SEED).integers(
        vocab_size, size=(batch_size, _PROMPT_LEN + _ANSWER_LEN)
    )
    sampler = Sampler(batch_size, vocab_size, logits.device)
    for slot in range(batch_size):
        sampler.admit(Admission(slot, sampling, (), _PROMPT_LEN, tuple(past[slot].tolist())))
    places = np.arange(batch_size)
    positions = np.full(batch_size, past.shape[1])

    def rescore(token_ids: Tensor) -> Tensor:
        rows = torch.nn.functional.embedding(token_ids, head).float()
        return torch.bmm(hidden.unsqueeze(1), rows.transpose(1, 2)).squeeze(1)

    return lambda: sampler.sample(logits, places, places, positions, rescore)


def _interleaved_ms(
    work: Callable[[], object], limit: Callable[[], object], runs: int
) -> tuple[float, float]:
    """Medians of both, measured in turn, after a run to warm up."""
    times_ms: tuple[list[float], list[float]] = ([], [])
    for run in range(runs + 1):
        for function, kept in zip((work, limit), times_ms, strict=True):
            start = time.perf_counter()
            function()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            if run:
                kept.append((time.perf_counter() - start) * 1000)
    return percentile(times_ms[0], 50.0), percentile(times_ms[1], 50.0)


if __name__ == "__main__":
    sys.exit(main())
