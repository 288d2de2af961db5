"""Every option, whatever the engine's deltas are cut to: a stream says what a whole answer says,
and both what the tokens mean.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from app.requests.answer_options import AnswerOptions
from app.text.detokenizer import create_detokenizer_factory
from tests.unit.app import answer_bench
from tests.unit.app.answer_bench import PROMPT, PROMPT_IDS, Script
from tests.unit.app.answers.test_stop_strings import stopped_at
from tests.unit.app.fakes import TOKENIZER, ids_of

create_detokenizer = create_detokenizer_factory(TOKENIZER)

WORDS = ["a", "b", "ab", "中文", "é", "e\u0301", "👩\u200d👩\u200d👧", "👋🏽", "\n", '"', "\\"]
STOPS = ["ab", "ba", "b", "中", "👩", "\u200d👧", "\ufffd", "aab", "文a"]
ODD_IDS = st.integers(0, 257).filter(lambda token_id: token_id != 257)
"""Single bytes, mostly no UTF-8, and a special token."""

TOKENS = st.lists(
    st.one_of(
        st.sampled_from(WORDS).map(ids_of),
        ODD_IDS.map(lambda token_id: [token_id]),
    ),
    max_size=8,
).map(lambda parts: tuple(chain.from_iterable(parts)))
CUTS = st.lists(st.integers(1, 30), max_size=8).map(lambda cuts: tuple(sorted(set(cuts))))


@st.composite
def scripts(draw: st.DrawFn) -> Script:
    num_samples = draw(st.integers(1, 3))
    return Script(
        samples=tuple(draw(TOKENS) for _ in range(num_samples)),
        is_stopped=draw(st.booleans()),
        cuts=tuple(draw(CUTS) for _ in range(num_samples)),
        order=tuple(draw(st.lists(st.integers(0, 2), max_size=12))),
    )


@st.composite
def cases(draw: st.DrawFn) -> tuple[Script, Script, AnswerOptions]:
    """The same tokens cut twice, and some options."""
    script = draw(scripts())
    num_samples = len(script.samples)
    other = replace(script, cuts=tuple(draw(CUTS) for _ in range(num_samples)), order=())
    options = AnswerOptions(
        num_choices=num_samples,
        num_samples=num_samples,
        stops=tuple(draw(st.lists(st.sampled_from(STOPS), max_size=2))),
        includes_stop=draw(st.booleans()),
        num_top_logprobs=draw(st.sampled_from([None, 0, 3])),
        echoes_prompt=draw(st.booleans()),
        is_stream=True,
        includes_usage=True,
        has_continuous_usage=draw(st.booleans()),
        returns_token_ids=draw(st.booleans()),
    )
    return script, other, options


@dataclass(eq=False)
class Joined:
    """A choice, put together of its chunks."""

    text: str = ""
    finish_reasons: list[str] = field(default_factory=list)
    logprobs: dict[str, list[Any]] | None = None
    token_ids: list[int] | None = None
    num_roles: int = 0

    def add(self, choice: dict[str, Any]) -> None:
        assert not self.finish_reasons, "a chunk follows the end"
        delta = choice.get("delta", {})
        text = delta.get("content", "") if "delta" in choice else choice["text"]
        self.num_roles += "role" in delta
        self.text += text
        if choice["finish_reason"] is not None:
            self.finish_reasons.append(choice["finish_reason"])
        if "token_ids" in choice:
            self.token_ids = (self.token_ids or []) + choice["token_ids"]
        logprobs = choice.get("logprobs")
        if logprobs is not None:
            if "content" in logprobs:
                shown = b"".join(bytes(token["bytes"]) for token in logprobs["content"])
                assert shown == text.encode(), "a chunk's tokens are not its text"
            known = self.logprobs or {}
            self.logprobs = {
                name: known.get(name, []) + (values or []) for name, values in logprobs.items()
            }


def join(chunks: list[dict[str, Any]], num_choices: int) -> list[Joined]:
    choices = [Joined() for _ in range(num_choices)]
    for chunk in chunks:
        for choice in chunk["choices"]:
            choices[choice["index"]].add(choice)
    return choices


def logprobs_of(choice: dict[str, Any]) -> dict[str, list[Any]]:
    return {name: values or [] for name, values in (choice["logprobs"] or {}).items()}


@given(cases())
@settings(max_examples=150, deadline=None)
def test_a_stream_equals_the_whole(case: tuple[Script, Script, AnswerOptions]) -> None:
    script, other, options = case
    for is_chat in (True, False):
        if is_chat:
            options = replace(options, echoes_prompt=False)
        *chunks, last = answer_bench.streamed(script, options, is_chat=is_chat)
        answer = answer_bench.whole(other, replace(options, is_stream=False), is_chat=is_chat)
        assert last["choices"] == []
        assert last["usage"] == answer["usage"]
        joined = join(chunks, options.num_choices)
        for choice, parts in zip(answer["choices"], joined, strict=True):
            text = choice["message"]["content"] if is_chat else choice["text"]
            assert parts.text == text
            assert parts.finish_reasons == [choice["finish_reason"]]
            streamed = parts.logprobs or {}
            found = {name: streamed.get(name, []) for name in logprobs_of(choice)}
            assert found == logprobs_of(choice)
            assert parts.token_ids == choice.get("token_ids")
            assert parts.num_roles == is_chat
            check_logprobs(choice, text, options)
        check_usage(chunks, answer["usage"], options)
        if options.returns_token_ids:
            check_prompt_ids(chunks, answer, is_chat=is_chat)


def check_prompt_ids(
    chunks: list[dict[str, Any]], answer: dict[str, Any], *, is_chat: bool
) -> None:
    """In chat beside the choices, in completions in each, with its first chunk."""
    if is_chat:
        assert chunks[0]["prompt_token_ids"] == answer["prompt_token_ids"] == PROMPT_IDS
        return
    streamed = [
        (choice["index"], choice["prompt_token_ids"])
        for chunk in chunks
        for choice in chunk["choices"]
        if "prompt_token_ids" in choice
    ]
    expected = [(choice["index"], PROMPT_IDS) for choice in answer["choices"]]
    assert [choice["prompt_token_ids"] for choice in answer["choices"]] == [
        ids for _, ids in expected
    ]
    assert sorted(streamed) == expected


def check_logprobs(choice: dict[str, Any], text: str, options: AnswerOptions) -> None:
    logprobs = choice["logprobs"]
    if options.num_top_logprobs is None:
        assert logprobs is None
    elif "content" in logprobs:
        shown = b"".join(bytes(token["bytes"]) for token in logprobs["content"])
        assert shown == text.encode()
        for token in logprobs["content"]:
            assert len(token["top_logprobs"]) == options.num_top_logprobs
    else:
        assert len({len(values) for values in logprobs.values()}) == 1
        assert logprobs["text_offset"] == sorted(logprobs["text_offset"])
        assert all(0 <= offset <= len(text) for offset in logprobs["text_offset"])
        if options.echoes_prompt:
            assert logprobs["token_logprobs"][0] is None
            assert logprobs["top_logprobs"][0] is None
            assert None not in logprobs["token_logprobs"][1:]


def check_usage(
    chunks: list[dict[str, Any]], usage: dict[str, Any], options: AnswerOptions
) -> None:
    counts = [chunk["usage"] and chunk["usage"]["completion_tokens"] for chunk in chunks]
    if options.has_continuous_usage:
        assert chunks[-1]["usage"] == usage
        assert counts == sorted(counts)
    else:
        assert counts == [None] * len(chunks)


def random_script(random_: random.Random) -> Script:
    tokens = [*map(ids_of, WORDS), *([id_] for id_ in random_.sample(range(257), 4))]
    sample = tuple(chain.from_iterable(random_.choices(tokens, k=random_.randrange(12))))
    cuts = tuple(sorted(random_.sample(range(1, 40), k=random_.randrange(8))))
    return Script((sample,), random_.random() < 0.5, (cuts,), ())


def test_a_thousand_stop_strings_leak_and_lose_nothing() -> None:
    """Against searching the whole text, token by token."""
    random_ = random.Random(7)
    num_stopped = 0
    for _ in range(1000):
        script = random_script(random_)
        stops = random_.sample(STOPS, k=random_.randint(1, 3))
        num_stopped += check_stops(script, stops, includes_stop=random_.random() < 0.5)
    assert 200 < num_stopped < 900


def check_stops(script: Script, stops: list[str], *, includes_stop: bool) -> int:
    """Returns how many samples were stopped."""
    options = AnswerOptions(
        num_choices=len(script.samples),
        num_samples=len(script.samples),
        stops=tuple(stops),
        includes_stop=includes_stop,
        num_top_logprobs=0,
        echoes_prompt=True,
        returns_token_ids=True,
    )
    answer = answer_bench.whole(script, options, is_chat=False)
    num_counted = num_stopped = 0
    for choice, sample in zip(answer["choices"], script.samples, strict=True):
        text, num_kept = expected(script, sample, stops, includes_stop=includes_stop)
        assert choice["text"] == PROMPT + text
        is_stopped = num_kept is not None or script.is_stopped
        assert choice["finish_reason"] == ("stop" if is_stopped else "length")
        num_tokens = len(sample) + script.is_stopped if num_kept is None else num_kept
        assert len(choice["token_ids"]) == num_tokens
        num_counted += num_tokens
        num_stopped += num_kept is not None
    assert answer["usage"]["completion_tokens"] == num_counted
    return num_stopped


def expected(
    script: Script, sample: Sequence[int], stops: list[str], *, includes_stop: bool
) -> tuple[str, int | None]:
    """The text, and the tokens up to the one that completed a stop string, if one did."""
    detokenizer = create_detokenizer()
    texts = [detokenizer.push(token_id) for token_id in sample]
    rest = detokenizer.flush()
    whole = "".join(texts) + rest
    start = stopped_at(whole, stops)
    if start is None:
        return whole, None
    ends = [start + len(stop) for stop in stops if whole.startswith(stop, start)]
    end = next(end for end in range(len(whole) + 1) if _completes(whole[:end], stops))
    assert end in ends
    num_chars = 0
    num_kept = len(sample) + script.is_stopped  # it is the flush that completes it
    for position, text in enumerate(texts):
        num_chars += len(text)
        if num_chars >= end:
            num_kept = position + 1
            break
    return whole[: end if includes_stop else start], num_kept


def _completes(text: str, stops: list[str]) -> bool:
    return any(text.endswith(stop) for stop in stops)


@given(scripts())
@settings(deadline=None)
def test_the_engine_is_told_once_per_sample_that_goes_on(script: Script) -> None:
    options = AnswerOptions(
        num_choices=len(script.samples), num_samples=len(script.samples), stops=("b",)
    )
    heard = answer_bench.aborts(script, options)
    assert len({index for index, _ in heard}) == len(heard)
    for index, num_kept in heard:
        _, kept = expected(script, script.samples[index or 0], ["b"], includes_stop=False)
        assert num_kept == kept
        assert (index is None) == (len(script.samples) == 1)
