"""A model's chat template, in a sandbox: messages in, the text of the prompt out.

The template comes with the model, never from a request. Rendering follows transformers'
``apply_chat_template`` (same globals, filters and whitespace rules). Must not know tokens.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from app.errors import InvalidRequestError

Message = Mapping[str, Any]


class ChatTemplate:
    """Compiled once per model."""

    def __init__(self, source: str, *, bos_token: str | None, eos_token: str | None) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _GenerationTag],
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        self._template = environment.from_string(source)
        self._special = {"bos_token": bos_token or "", "eos_token": eos_token or ""}

    def render(self, messages: Sequence[Message]) -> str:
        """The prompt, ending where the assistant's answer begins.

        Raises ``InvalidRequestError`` with the template's own words when it refuses the messages.
        """
        try:
            return self._template.render(
                messages=messages,
                add_generation_prompt=True,
                tools=None,
                documents=None,
                **self._special,
            )
        except Exception as error:  # the sandbox runs nothing but the template on these messages
            raise InvalidRequestError(
                f"The model's chat template refuses these messages: {error}", param="messages"
            ) from error


class _GenerationTag(Extension):
    """``{% generation %}`` marks the assistant's words for training; here it only shows them."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it as an instance's

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """jinja2's own filter escapes for HTML, which a model was not trained on."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(format_: str) -> str:
    return datetime.now().astimezone().strftime(format_)
