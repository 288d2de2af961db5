"""transformers' ``generate`` as a peer of the engine benchmark: what a naive user has.

    python -m benchmarks.peer_transformers --checkpoint DIR --dtype bfloat16 --threads 2

One static batch of equal prompts a call. A ``mixed`` case is beyond it: nothing joins a batch.
Speaks `peer_protocol`; runs in this project's own environment.
"""

import argparse
import sys
import time
from itertools import pairwise
from statistics import median
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, GenerationConfig, StoppingCriteria

from benchmarks.engine_cases import Case, Prompts
from benchmarks.engine_timing import Speed
from benchmarks.peer_protocol import claimed_stdout, serve

_PACKAGES = ("transformers", "torch")
_SEED = 1
_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


class StepClock(StoppingCriteria):  # type: ignore[misc]  # untyped
    """Asked after each token whether to stop; notes the time and says no."""

    def __init__(self) -> None:
        self.ends_s: list[float] = []

    def __call__(self, input_ids: Tensor, scores: Tensor, **kwargs: Any) -> Tensor:
        self.ends_s.append(time.perf_counter())
        return torch.zeros(len(input_ids), dtype=torch.bool)


def measure(model: Any, case: Case, prompts: Prompts) -> Speed:
    """Times the first token, or the steps after it."""
    if case.kind == "mixed":
        raise ValueError("a static batch can't be joined")
    batch = torch.tensor([prompts.draw(case.prompt_len) for _ in range(case.num_seqs)])
    clock = StepClock()
    config = GenerationConfig(
        max_new_tokens=1 + case.num_steps, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    started_s = time.perf_counter()
    model.generate(
        batch,
        attention_mask=torch.ones_like(batch),
        generation_config=config,
        stopping_criteria=[clock],
    )
    if case.kind == "prefill":
        duration_s = clock.ends_s[0] - started_s
        return Speed(batch.numel() / duration_s, duration_s)
    steps_s = [end - start for start, end in pairwise(clock.ends_s)]
    return Speed(case.num_seqs * len(steps_s) / sum(steps_s), median(steps_s))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--dtype", choices=sorted(_DTYPES), required=True)
    parser.add_argument("--threads", type=int, required=True)
    options = parser.parse_args()
    with claimed_stdout() as answers:
        torch.set_num_threads(options.threads)
        model = AutoModelForCausalLM.from_pretrained(
            options.checkpoint, dtype=_DTYPES[options.dtype]
        )
        model.generation_config = GenerationConfig()  # its own would be mixed into ours
        prompts = Prompts(_SEED, model.config.vocab_size)
        serve(sys.stdin, answers, lambda case: measure(model, case, prompts), _PACKAGES)


if __name__ == "__main__":
    main()
