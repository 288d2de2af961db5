"""A model's chat template: messages in, the text of the prompt out.

The template comes with the model, never from a request, and runs in ``app.text.template_sandbox``.
Rendering follows transformers' ``apply_chat_template``. Must not know tokens.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from jinja2 import Template, nodes

from app.errors import InvalidRequestError
from app.text.template_sandbox import TemplateSandbox

Message = Mapping[str, Any]

_MAX_REASON_CHARS = 500
_CONTINUE_MARK = "\ue000\ue001\ue000"
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


class ChatTemplate:
    """Compiled once per model; used from any thread."""

    def __init__(
        self,
        source: str,
        *,
        bos_token: str | None,
        eos_token: str | None,
        time_limit_s: float = 1.0,
    ) -> None:
        """A template that cannot be compiled refuses every request."""
        self._time_limit_s = time_limit_s
        self._sandbox = TemplateSandbox()
        self._special = {"bos_token": bos_token or "", "eos_token": eos_token or ""}
        self._template: Template | None = None
        self._fault = ""
        self.takes_tools = False
        self.is_slow = False
        """A rendering took longer than its messages explain: not for the event loop any more."""
        try:
            names = self._sandbox.parse(source).find_all(nodes.Name)
            self.takes_tools = any(name.name == "tools" for name in names)
            self._template = self._sandbox.from_string(source)
        except Exception as error:  # whatever a parser and a compiler make of nonsense
            self._fault = _reason_of(error)
            return
        with suppress(InvalidRequestError):  # it may well refuse this conversation
            self.render([{"role": "user", "content": "Hi"}])

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> str:
        """The prompt; it ends where the assistant's answer begins, or within the last message.

        Raises ``InvalidRequestError`` with the template's own words when it refuses the messages.
        """
        if self._template is None:
            raise InvalidRequestError(
                f"The model's chat template cannot be used: {self._fault}", param="model"
            )
        if tools and not self.takes_tools:
            raise InvalidRequestError("The model's chat template takes no tools.", param="tools")
        if continue_final_message:
            messages = [*messages[:-1], _with_mark(messages[-1])]
        given = {
            **(template_kwargs or {}),
            "messages": messages,
            "tools": tools or None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            **self._special,
        }
        rendered = self._run(self._template, given)
        return _cut_at_mark(rendered, messages[-1]) if continue_final_message else rendered

    def _run(self, template: Template, given: Mapping[str, Any]) -> str:
        budget = None
        try:
            with self._sandbox.limits(given, limit_s=self._time_limit_s) as budget:
                return template.render(given)
        except Exception as error:  # the sandbox runs nothing but the template on these messages
            raise InvalidRequestError(
                f"The model's chat template refuses these messages: {_reason_of(error)}",
                param="messages",
            ) from error
        finally:
            if budget is not None and budget.used_s > budget.expected_s:
                self.is_slow = True


def _with_mark(message: Message) -> Message:
    return {**message, "content": f"{message['content']}{_CONTINUE_MARK} "}


def _cut_at_mark(rendered: str, message: Message) -> str:
    """The mark ends in a space: where a template trims it, it trims the message's spaces, too."""
    head, mark, tail = rendered.rpartition(_CONTINUE_MARK)
    content = str(message["content"]).removesuffix(f"{_CONTINUE_MARK} ").strip()
    if not mark or content not in head:
        raise InvalidRequestError(
            "The model's chat template changes the last message, so that it cannot be continued.",
            param="continue_final_message",
        )
    return head if tail.startswith(" ") else head.rstrip()


def _reason_of(error: Exception) -> str:
    """For the client: the template's words, without what they say of this process."""
    if isinstance(error, RecursionError):
        return "it calls itself too often"
    if isinstance(error, MemoryError):
        return "it takes too much memory"
    return _ADDRESS.sub("", str(error))[:_MAX_REASON_CHARS]
