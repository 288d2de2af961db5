"""Chat templates: what transformers renders, and nothing that takes long or much memory."""
# ruff: noqa: E501 - templates stand on one line

import json
import time
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.errors import InvalidRequestError
from app.text.chat_template import ChatTemplate

MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi <é>"},
    {"role": "assistant", "content": " Hello. "},
]
GROW = (
    "{%% set ns = namespace(v=%s) %%}{%% for _ in range(99) %%}{%% set ns.v = %s %%}{%% endfor %%}"
)


def render(source: str, messages: Any = MESSAGES, **given: Any) -> str:
    return ChatTemplate(source, bos_token="<s>", eos_token=None).render(messages, **given)


def refusal(source: str, messages: Any = MESSAGES, **given: Any) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        render(source, messages, **given)
    return caught.value


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ bos_token }}{{ eos_token }}|", "<s>|"),
        (
            "{% for m in messages[1:] %}{{ loop.index0 }}{{ m['role'] }},{% endfor %}",
            "0user,1assistant,",
        ),
        ("{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}", "Hi <é>"),
        (
            "{% for m in messages %}{% if loop.last %}{% break %}{% endif %}{{ m.role[0] }}{% endfor %}",
            "su",
        ),
        (
            "{% generation %}{{ messages[0].content ~ 1 ~ none }}{% endgeneration %}",
            "Be brief.1None",
        ),
        ("{{ messages | map(attribute='role') | join('+') | upper }}", "SYSTEM+USER+ASSISTANT"),
        ("{{ messages | selectattr('role', 'equalto', 'user') | list | length }}", "1"),
        (
            "{{ messages | rejectattr('role', 'in', ['user', 'system']) | first | tojson }}",
            '{"role": "assistant", "content": " Hello. "}',
        ),
        ("{{ messages[2].content.strip() + '!' }}", "Hello.!"),
        ("{{ messages[2].content | trim | replace('l', 'L') | indent(2, true) }}", "  HeLLo."),
        ("{{ 'a</think>b'.split('</think>')[-1].lstrip('\n') }}{{ 'a b'.split() }}", "b['a', 'b']"),
        (
            "{{ 'x{}y{z}'.format(1, z='é') }}{{ '%s-%d' % ('a', 3) }}{{ '%s' | format('b') }}",
            "x1yéa-3b",
        ),
        (
            "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
            "3",
        ),
        ("{% macro f(x, y=2) %}{{ x * y }}{% endmacro %}{{ f(3) }}{{ f('a', 3) }}", "6aaa"),
        ("{% macro f() %}[{{ caller() }}]{% endmacro %}{% call f() %}in{% endcall %}", "[in]"),
        (
            "{% filter upper %}{{ 'a' }}b{% endfilter %}{% set x %}{{ 1 }}c{% endset %}{{ x }}",
            "AB1c",
        ),
        ("{% for k, v in {'a': 1, 'b': [2]}.items() %}{{ k }}={{ v }};{% endfor %}", "a=1;b=[2];"),
        (
            "{{ {'b': 1, 'a': 2} | dictsort }}{{ {'a': 1} | items | list }}",
            "[('a', 2), ('b', 1)][('a', 1)]",
        ),
        ("{{ undefined_name }}{{ messages[0].name }}{{ messages[0].name is defined }}", "False"),
        (
            "{{ [1, 2] + [3] }}{{ (1, 2) }}{{ [3, 1] | sort }}{{ [1, 1] | unique | list }}",
            "[1, 2, 3](1, 2)[1, 3][1]",
        ),
        (
            "{{ 7 // 2 }}{{ 7 % 4 }}{{ 2 ** 3 }}{{ -1 }}{{ 1.25 | round(1) }}{{ '3' | int }}{{ 1.5 | string }}",
            "338-11.231.5",
        ),
        ("{{ '<' | safe }}{{ 'a' in 'ab' }}{{ 'ab'[::-1] }}{{ 'a' if true else 'b' }}", "<Truebaa"),
        ("{{ add_generation_prompt }}{{ tools }}{{ documents }}{{ language }}", "TrueNoneNonede"),
        ("{{ strftime_now('%Y') | length }}", "4"),
        (
            "{% for m in messages %}{{ m.content.strip().split('l')[0].replace('H', 'h') }}{{ '{}'.format(loop.index) }}{{ '-'.join(['a', 'b']) }}{{ m.get('role') }}{% endfor %}",
            "Be brief.1a-bsystemhi <é>2a-buserhe3a-bassistant",
        ),
        ("a\n{% if true %}\n  b\n  {% endif %}\nc", "a\n  b\nc"),
    ],
)
def test_templates_render_as_transformers_renders_them(source: str, expected: str) -> None:
    assert render(source, template_kwargs={"language": "de"}) == expected


def test_tools_are_given_to_templates_that_take_them() -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"a": [1]}}}]
    assert render("{{ tools | tojson }}", tools=tools) == json.dumps(tools)
    indented = "{% if tools %}{{ tools | tojson(indent=2) }}{% endif %}"
    assert render(indented, tools=tools) == json.dumps(tools, indent=2)
    assert render(indented, tools=[]) == ""


def test_tools_are_refused_by_templates_that_do_not_mention_them() -> None:
    error = refusal("{{ messages[0].content }} tools", tools=[{"type": "function"}])
    assert (error.param, error.message) == ("tools", "The model's chat template takes no tools.")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("{{ m.content }}", "system:Be brief.;user:Hi <é>;assistant: Hello. "),
        ("{{ m.content | trim }}", "system:Be brief.;user:Hi <é>;assistant:Hello."),
        ("{{ m.content.strip() + '\n' }}", "system:Be brief.\n;user:Hi <é>\n;assistant:Hello."),
    ],
)
def test_the_last_message_can_be_continued(content: str, expected: str) -> None:
    source = "{% for m in messages %}{{ m.role }}:" + content + ";{% endfor %}"
    given = {"add_generation_prompt": False, "continue_final_message": True}
    assert render(source, **given) == expected


def test_what_the_template_hides_cannot_be_continued() -> None:
    error = refusal("{{ messages[0].content }}", continue_final_message=True)
    assert error.param == "continue_final_message"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[5].content }}", "has no element 5"),
        ("{{ messages[0].content + 5 }}", "can only concatenate str"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ nothing() }}", "'nothing' is undefined"),
        ("{{ messages.append(1) }}", "'append'"),
        ("{{ ''.__class__.__mro__ }}", "__class__"),
        ("{{ messages[0].items }}", "as a value"),
    ],
)
def test_a_refusal_carries_the_templates_words(source: str, message: str) -> None:
    error = refusal(source)
    assert message in error.message
    assert error.param == "messages"
    assert "0x" not in error.message
    assert "Traceback" not in error.message


def test_a_refusal_is_short_however_much_the_template_says() -> None:
    assert len(refusal("{{ raise_exception('x' * 10000) }}").message) < 1000


@pytest.mark.parametrize(
    "source",
    [
        "{% if true %}",
        "{{ 'a' | no_such_filter }}",
        "{% include 'other' %}",
        "{% extends 'other' %}",
        "{% import 'other' as o %}",
        "{% block a %}{% endblock %}",
        "{{ 'a' | center(10 ** 10) }}",
        "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}",
        "{% if true %}" * 200 + "{% endif %}" * 200,
        "x" * 300_000,
    ],
)
def test_a_template_that_cannot_be_used_refuses_chat(source: str) -> None:
    error = refusal(source)
    assert "chat template cannot be used" in error.message
    assert error.param == "model"


SLOW = [
    "{% for i in range(10 ** 9) %}{% endfor %}",
    "{% for i in range(10 ** 5) %}{% for j in range(10 ** 5) %}{% endfor %}{% endfor %}",
    "{% for i in range(10 ** 5) %}{% for j in range(10 ** 5) if false %}{% endfor %}{% endfor %}",
    "{% for i in range(10 ** 5) %}{% for j in range(10 ** 5) %}{% continue %}{% endfor %}{% endfor %}",
    "{% set big = range(50000) | list %}{% for i in range(10 ** 5) if -1 in big %}{% endfor %}",
    "{% set big = range(50000) | list %}{{ range(10 ** 5) | map('string') | reject('in', big) | list }}",
    "{% set big = range(9000) | list %}{{ range(10 ** 5) | map(attribute='x', default=big) | map('max') | list }}",
]
LARGE = [
    GROW % ("'a'", "ns.v ~ ns.v") + "{{ ns.v }}",
    GROW % ("'a'", "ns.v + ns.v") + "{{ ns.v }}",
    GROW % ("'a'", "ns.v * 9") + "{{ ns.v }}",
    GROW % ("'a'", "ns.v.replace('a', 'aa')") + "{{ ns.v }}",
    GROW % ("'a'", "ns.v | replace('a', 'aa')") + "{{ ns.v }}",
    GROW % ("'a'", "ns.v.join([ns.v, ns.v, ns.v])") + "{{ ns.v }}",
    GROW % ("'a'", "[ns.v, ns.v] | join(ns.v)") + "{{ ns.v }}",
    GROW % ("'a'", "'{0}{0}'.format(ns.v)") + "{{ ns.v }}",
    GROW % ("'a'", "'%s%s' % (ns.v, ns.v)") + "{{ ns.v }}",
    GROW % ("'a'", "'%s%s' | format(ns.v, ns.v)") + "{{ ns.v }}",
    GROW % ("[1]", "[ns.v, ns.v]") + "{{ ns.v }}",
    GROW % ("[1]", "(ns.v, ns.v)") + "{{ ns.v == ns.v }}",
    GROW % ("[1]", "{'a': ns.v, 'b': ns.v}") + "{{ ns.v | tojson }}",
    GROW % ("[1]", "dict(a=ns.v, b=ns.v)") + "{{ ns.v | tojson }}",
    GROW % ("[1]", "ns.v + ns.v") + "{{ ns.v }}",
    GROW % ("[1]", "ns.v * 2") + "{{ ns.v }}",
    GROW % ("7", "ns.v * ns.v") + "{{ ns.v }}",
    "{% set ns = namespace(v='a') %}{% for i in range(99) %}{% set ns.v %}{{ ns.v }}{{ ns.v }}{% endset %}{% endfor %}",
    "{% macro f(x) %}{{ f(x + 1) }}{{ f(x + 1) }}{% endmacro %}{{ f(1) }}",
    "{% macro f(x) %}{{ f([x, x]) }}{% endmacro %}{{ f(1) }}",
    "{% for m in messages recursive %}{{ loop(messages) }}{% endfor %}",
    "{% for i in range(10 ** 5) %}" + "x" * 1000 + "{% endfor %}",
    "{% macro f() %}"
    + "x" * 1000
    + "{% endmacro %}{% for i in range(10 ** 5) %}{{ f() }}{% endfor %}",
    "{{ 'a' * 10 ** 10 }}",
    "{{ 10 ** 10 * 'a' }}",
    "{{ [1] * 10 ** 10 }}",
    "{{ 9 ** 9 ** 9 }}",
    "{{ 'a'.ljust(10 ** 10) }}",
    "{{ 'a'.zfill(10 ** 10) }}",
    "{{ '\t'.expandtabs(10 ** 10) }}",
    "{{ '{:1000000000}'.format(1) }}",
    "{{ '{0.__class__}'.format(1) }}",
    "{{ ('{:1000000000}' | attr('format'))(1) }}",
    "{{ '{a:1000000000}'.format_map({'a': 1}) }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '%*d' % (10 ** 9, 1) }}",
    "{{ '%(a)s' % {'a': 1} }}",
    "{{ 'x' | indent(10 ** 9) }}",
    "{{ 'x' | indent('x' * 10 ** 6) }}",
    "{{ messages | tojson(indent=10 ** 9) }}",
    "{{ messages | tojson(separators=('x' * 10 ** 6, ':')) }}",
    "{{ 1.5 | round(10 ** 9, 'floor') }}",
    "{{ strftime_now('%1000000000Y') }}",
    "{{ lipsum(10 ** 9) }}",
    "{{ (1).to_bytes(10 ** 10, 'big') }}",
    "{{ 'a'.encode() * 10 ** 10 }}",
    "{{ cycler.__init__.__globals__.os }}",
    "{{ messages | map('tojson') }}",
    "{{ (range(10 ** 5) | map('string') | join('x' * 1000)) }}",
    "{% set ns = namespace(l=[]) %}{% for i in range(10 ** 5) %}{% set ns.l = ns.l + [i] %}{% endfor %}",
    GROW % ("[]", "ns.v + [('ab' * 200000)[ns.v | length:]]"),
    "{{ ('ab' * 200000) | list }}",
    "{{ ('a ' * 200000).split() }}",
]


@pytest.mark.parametrize("source", SLOW)
def test_templates_that_would_run_long_are_stopped(source: str) -> None:
    template = ChatTemplate(source, bos_token=None, eos_token=None, time_limit_s=0.03)
    started_s = time.monotonic()
    with pytest.raises(InvalidRequestError):
        template.render(MESSAGES)
    assert time.monotonic() - started_s < 3, "on a busy machine"


@pytest.mark.parametrize("source", LARGE)
def test_templates_that_would_take_much_memory_are_stopped(source: str) -> None:
    template = ChatTemplate(source, bos_token=None, eos_token=None, time_limit_s=0.03)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequestError):
            template.render(MESSAGES)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 150 * 2**20


def test_a_slow_template_is_known_as_such_when_it_is_loaded() -> None:
    slow = "{% for i in range(10 ** 5) %}{% endfor %}"
    assert ChatTemplate(slow, bos_token=None, eos_token=None).is_slow
    assert not ChatTemplate("{{ messages }}", bos_token=None, eos_token=None).is_slow


def test_a_template_that_turns_out_to_be_slow_is_remembered() -> None:
    source = "{% if messages[1] %}{% for i in range(10 ** 5) %}{% endfor %}{% endif %}"
    template = ChatTemplate(source, bos_token=None, eos_token=None)
    assert not template.is_slow
    template.render(MESSAGES)
    assert template.is_slow


def test_long_conversations_fit_the_limits() -> None:
    turns = "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content | trim }}<|end|>\n{% endfor %}"
    messages = [{"role": "user", "content": "word " * 100}] * 10_000
    template = ChatTemplate(turns, bos_token=None, eos_token=None)
    assert len(template.render(messages)) > 5_000_000
    assert not template.is_slow


def test_a_template_that_collects_text_renders_hundreds_of_turns() -> None:
    source = (
        "{% set ns = namespace(text='') %}{% for m in messages %}"
        "{% set ns.text = ns.text + m.role + m.content %}{% endfor %}{{ ns.text }}"
    )
    messages = [{"role": "user", "content": "word " * 100}] * 300
    assert len(render(source, messages)) == 300 * 504


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda values: (
        st.lists(values, max_size=3) | st.dictionaries(st.text(max_size=3), values, max_size=3)
    ),
    max_leaves=8,
)


@given(JSON_VALUES)
@settings(max_examples=100, deadline=None)
def test_any_json_of_a_client_renders_or_is_refused(value: Any) -> None:
    source = "{{ messages[0].x | tojson }}{{ messages[0].x }}{% for y in messages[0].x %}{{ y }}{% endfor %}"
    messages = [{"role": "user", "content": "", "x": value}]
    if isinstance(value, str | list | dict):
        assert render(source, messages).startswith(json.dumps(value, ensure_ascii=False))
    else:
        assert "iterable" in refusal(source, messages).message
