"""Streamed answers in the background, and what became of them."""

import threading
import time

import httpx
import openai


class Stream(threading.Thread):
    """One streamed answer from its request to its end."""

    def __init__(self, url: str, model: str, *, num_tokens: int, prompt: str = "Go on.") -> None:
        super().__init__(daemon=True)
        self.num_tokens = 0
        """Of the answer, as the usage says; 0 until the end."""
        self.first_token_s: float | None = None
        """On the monotonic clock."""
        self.error: Exception | None = None
        self._url, self._model, self._prompt, self._asked = url, model, prompt, num_tokens
        self.start()

    def run(self) -> None:
        # Retries would hide what the tests are about.
        client = openai.OpenAI(base_url=f"{self._url}/v1", api_key="none", max_retries=0)
        try:
            stream = client.chat.completions.create(
                model=self._model,
                messages=[{"role": "user", "content": self._prompt}],
                max_tokens=self._asked,
                stream=True,
                stream_options={"include_usage": True},
                timeout=60.0,
            )
            for chunk in stream:
                if self.first_token_s is None and chunk.choices:
                    self.first_token_s = time.monotonic()
                if chunk.usage is not None:
                    self.num_tokens = chunk.usage.completion_tokens
        except (openai.APIError, httpx.HTTPError) as error:
            self.error = error
        finally:
            client.close()

    def wait_for_first_token(self, timeout_s: float) -> float:
        """Its time on the monotonic clock; fails if none came."""
        deadline_s = time.monotonic() + timeout_s
        while self.first_token_s is None:
            assert self.error is None, self.error
            assert time.monotonic() < deadline_s, f"no token within {timeout_s:g} s"
            time.sleep(0.01)
        return self.first_token_s

    def wait(self, timeout_s: float) -> None:
        self.join(timeout_s)
        assert not self.is_alive(), f"not at its end after {timeout_s:g} s"


def streams(url: str, model: str, *, count: int, num_tokens: int) -> list[Stream]:
    """`count` streams that have begun; their prompts differ, so that no replica gets them all."""
    started = [
        Stream(url, model, num_tokens=num_tokens, prompt=f"{number} ways to begin, please.")
        for number in range(count)
    ]
    for stream in started:
        stream.wait_for_first_token(30.0)
    return started
