"""Offline benchmark of the gateway's text work: ``python -m benchmarks.tokenizing --out FILE``.

What templating, tokenizing and keying a prompt adds to its TTFT, how long a 100k-token prompt that
is tokenized in a thread keeps the event loop, and so the other streams, waiting, and what a token
of an answer costs to turn into text. Needs a pulled model, no engine.
"""

import argparse
import asyncio
import hashlib
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import TypeVar

from app.text.chat_template import Message
from app.text.tokenization import ModelTokenizer
from benchmarks.result import BenchmarkResult, CaseResult
from benchmarks.workload import Workload, make_prompt
from deployments.environment import headwater_home
from engine.checkpoints.store import checkpoint_path, open_checkpoint
from engine.config import EngineConfig, EngineSpec
from engine.errors import EngineError
from engine.messages import LoadView
from engine.model_card import make_model_card
from engine.rank_messages import Ready

_MODEL = "smollm2-135m-instruct"
_SEED = 0
_NUM_TURNS = 15
_TURN_WORDS = 200
_TICK_S = 0.001
_MAX_PROMPT_MS = 12.0
_MAX_STALL_MS = 10.0
"""What the gateway promises."""

Result = TypeVar("Result")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; 0 if a result was written, 1 if not."""
    options = _parse_options(sys.argv[1:] if argv is None else argv)
    try:
        tokenizer = open_tokenizer(options.checkpoint)
        runs = range(options.runs)
        results = results_of(
            [measure_conversation(tokenizer, run) for run in runs],
            [asyncio.run(measure_long_prompt(tokenizer, run, options.long_words)) for run in runs],
        )
        BenchmarkResult.of_this_machine(
            name="tokenizing",
            config={
                "runs": options.runs,
                "long_words": options.long_words,
                "checkpoint": options.checkpoint.name,
            },
            seed=_SEED,
            results=results,
        ).write(options.out)
    except (EngineError, OSError) as error:
        print(f"benchmarks.tokenizing: {error}", file=sys.stderr)
        return 1
    for result in results:
        print(f"{result.case:28} {result.value:9.3f} {result.unit}")
    return 0


def open_tokenizer(path: Path) -> ModelTokenizer:
    """Of the checkpoint in the folder ``path``, without loading its weights."""
    checkpoint = open_checkpoint(path)
    spec = EngineSpec(model=path.name, checkpoint=path, config=EngineConfig())
    ready = Ready(
        weights_revision=checkpoint.revision,
        max_model_len=2**20,
        max_request_tokens=2**20,
        vocab_size=checkpoint.config["vocab_size"],
        num_blocks=1,
        load=LoadView(),
        load_time_s=0.0,
        warm_up_time_s=0.0,
    )
    return ModelTokenizer(make_model_card(spec, checkpoint, ready, engine_id="benchmark"))


@dataclass(frozen=True, slots=True)
class ConversationCost:
    """Of a conversation of some 3,000 tokens, in milliseconds."""

    num_tokens: int
    new_ms: float
    whole_text_ms: float
    """The library alone on the rendered text."""
    next_turn_ms: float
    """The conversation again, with one more turn."""
    detokenizing_ms: float
    """All its tokens, one by one."""


@dataclass(frozen=True, slots=True)
class LongPromptCost:
    """Of a very long prompt that is tokenized in a thread, in milliseconds."""

    prompt_ms: float
    longest_stall_ms: float
    """Of the event loop meanwhile."""
    machine_stall_ms: float
    """The same beside a thread that computes as long and needs nothing of the interpreter."""


def measure_conversation(tokenizer: ModelTokenizer, run: int) -> ConversationCost:
    """Every run asks something that the tokenizer has not seen."""
    messages = _messages(run, _NUM_TURNS, _TURN_WORDS)
    prompt, new_ms = _timed(partial(tokenizer.prompt, messages))
    text = tokenizer.decode_prompt(prompt.token_ids)
    encode = partial(tokenizer.encode_text, text, add_special_tokens=False)
    _, whole_text_ms = _timed(encode)
    more = [*messages, *_messages(run + 1_000_000, 1, _TURN_WORDS)]
    _, next_turn_ms = _timed(partial(tokenizer.prompt, more))
    push = tokenizer.create_detokenizer().push
    _, detokenizing_ms = _timed(lambda: [push(token_id) for token_id in prompt.token_ids])
    return ConversationCost(
        num_tokens=len(prompt.token_ids),
        new_ms=new_ms,
        whole_text_ms=whole_text_ms,
        next_turn_ms=next_turn_ms,
        detokenizing_ms=detokenizing_ms,
    )


async def measure_long_prompt(
    tokenizer: ModelTokenizer, run: int, num_words: int
) -> LongPromptCost:
    messages = _messages(run, 1, num_words)
    started_s = time.perf_counter()
    longest_stall_ms = await _longest_stall_ms(partial(tokenizer.prompt, messages))
    prompt_s = time.perf_counter() - started_s
    machine_stall_ms = await _longest_stall_ms(partial(_compute, prompt_s))
    return LongPromptCost(prompt_s * 1000, longest_stall_ms, machine_stall_ms)


async def _longest_stall_ms(work: Callable[[], object]) -> float:
    """Of the event loop while a thread does ``work``: a task wakes every millisecond and notes how
    late it is.
    """
    stalls_ms: list[float] = []
    ticker = asyncio.create_task(_tick(stalls_ms))
    await asyncio.sleep(5 * _TICK_S)
    await asyncio.to_thread(work)
    await asyncio.sleep(5 * _TICK_S)
    ticker.cancel()
    return max(stalls_ms)


def _compute(duration_s: float) -> None:
    end_s = time.perf_counter() + duration_s
    while time.perf_counter() < end_s:
        hashlib.pbkdf2_hmac("sha256", b"benchmark", b"benchmark", iterations=20_000)


def results_of(
    conversations: Sequence[ConversationCost], long_prompts: Sequence[LongPromptCost]
) -> list[CaseResult]:
    """Medians over the runs; of each run's longest stall, too, since on a machine that is shared
    the longest of all is the machine's.
    """
    per_token_us = [cost.detokenizing_ms * 1000 / cost.num_tokens for cost in conversations]
    return [
        CaseResult(
            case="prompt_3k_new",
            value=median(cost.new_ms for cost in conversations),
            unit="ms",
            peer="tokenizers alone",
            peer_value=median(cost.whole_text_ms for cost in conversations),
            limit=_MAX_PROMPT_MS,
        ),
        CaseResult(
            case="prompt_3k_next_turn",
            value=median(cost.next_turn_ms for cost in conversations),
            unit="ms",
            limit=_MAX_PROMPT_MS,
        ),
        CaseResult(
            case="prompt_3k_length",
            value=median(cost.num_tokens for cost in conversations),
            unit="tokens",
        ),
        CaseResult(
            case="long_prompt", value=median(cost.prompt_ms for cost in long_prompts), unit="ms"
        ),
        CaseResult(
            case="long_prompt_longest_stall",
            value=median(cost.longest_stall_ms for cost in long_prompts),
            unit="ms",
            peer="beside hashing",
            peer_value=median(cost.machine_stall_ms for cost in long_prompts),
            limit=_MAX_STALL_MS,
        ),
        CaseResult(case="detokenizing_per_token", value=median(per_token_us), unit="us"),
    ]


async def _tick(stalls_ms: list[float]) -> None:
    last_s = time.perf_counter()
    while True:
        await asyncio.sleep(_TICK_S)
        now_s = time.perf_counter()
        stalls_ms.append((now_s - last_s - _TICK_S) * 1000)
        last_s = now_s


def _messages(run: int, num_turns: int, num_words: int) -> list[Message]:
    workload = Workload(prompt_words=num_words, output_tokens=1, seed=_SEED)
    return [
        {
            "role": "assistant" if turn % 2 else "user",
            "content": make_prompt(workload, f"{run}", turn),
        }
        for turn in range(num_turns)
    ]


def _timed(work: Callable[[], Result]) -> tuple[Result, float]:
    """What ``work`` returned, and the milliseconds it took."""
    started_s = time.perf_counter()
    result = work()
    return result, (time.perf_counter() - started_s) * 1000


def _parse_options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tokenizing", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="result file to write")
    parser.add_argument("--runs", type=int, default=20, help="measurements of each case")
    parser.add_argument(
        "--long-words", type=int, default=100_000, help="of the long prompt, about a token each"
    )
    parser.add_argument(
        "--checkpoint",
        type=Path,
        default=checkpoint_path(headwater_home(), _MODEL),
        help="the model's folder",
    )
    options = parser.parse_args(argv)
    if options.runs < 1 or options.long_words < 1:
        parser.error("--runs and --long-words must be at least 1")
    return options


if __name__ == "__main__":
    sys.exit(main())
