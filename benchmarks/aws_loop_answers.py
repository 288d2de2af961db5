"""Streamed answers in the background, and what became of them. Knows no cluster."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

import httpx
import msgspec

_TIMEOUT_S = 150.0
_DATA, _END = "data: ", "data: [DONE]"


@dataclass(slots=True)
class Outcome:
    """Of one request; times on the monotonic clock."""

    text: str = ""
    status: int = 0
    error: str = ""
    """Empty for a whole answer."""
    retry_after_s: float | None = None
    begun_s: float = 0.0
    first_token_s: float | None = None
    longest_pause_s: float = 0.0
    """Between two tokens."""


class Ask(threading.Thread):
    """A greedy streamed chat completion, from its request to its end."""

    def __init__(self, url: str, model: str, prompt: str, *, num_tokens: int) -> None:
        super().__init__(daemon=True)
        self.outcome = Outcome(begun_s=time.monotonic())
        self._url = f"{url}/v1/chat/completions"
        self._body = {
            "model": model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": num_tokens,
            "temperature": 0,
            "seed": 0,
            "stream": True,
        }
        self.start()

    def run(self) -> None:
        try:
            with httpx.stream("POST", self._url, json=self._body, timeout=_TIMEOUT_S) as answer:
                self._read(answer)
        except httpx.HTTPError as error:
            self.outcome.error = repr(error)

    def wait(self, timeout_s: float = _TIMEOUT_S) -> Outcome:
        """Raises ``TimeoutError``."""
        self.join(timeout_s)
        if self.is_alive():
            raise TimeoutError(f"an answer has not ended after {timeout_s:.0f} s")
        return self.outcome

    def wait_for_first_token(self, timeout_s: float = _TIMEOUT_S) -> None:
        """Raises ``TimeoutError``."""
        deadline_s = time.monotonic() + timeout_s
        while self.outcome.first_token_s is None:
            if not self.is_alive() or time.monotonic() > deadline_s:
                raise TimeoutError(f"no token came: {self.outcome}")
            time.sleep(0.02)

    def _read(self, answer: httpx.Response) -> None:
        outcome = self.outcome
        outcome.status = answer.status_code
        if answer.status_code != httpx.codes.OK:
            outcome.error = answer.read().decode("utf-8", "replace")
            told = answer.headers.get("retry-after")
            outcome.retry_after_s = None if told is None else float(told)
            return
        last_s, is_whole = None, False
        for line in answer.iter_lines():
            if line == _END:
                is_whole = True
            elif line.startswith(_DATA):
                event = msgspec.json.decode(line.removeprefix(_DATA))
                if "error" in event:
                    outcome.error = str(event["error"])
                text = "".join(
                    each["delta"].get("content") or "" for each in event.get("choices", ())
                )
                if not text:
                    continue
                now_s = time.monotonic()
                if last_s is None:
                    outcome.first_token_s = now_s
                else:
                    outcome.longest_pause_s = max(outcome.longest_pause_s, now_s - last_s)
                last_s = now_s
                outcome.text += text
        if not is_whole and not outcome.error:
            outcome.error = "the stream was cut"
