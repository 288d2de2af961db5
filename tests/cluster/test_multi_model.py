"""`configs/multi-model.yaml` as it stands, on another port: two real models behind one endpoint."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest
import yaml

from deployments.local_environment import free_port
from deployments.local_serve import LocalServe
from deployments.report import State
from deployments.serve_file import read_serve_file
from tests.cluster.local import START_TIMEOUT_S, provide
from tests.quickstart import cached_checkpoint

FILE = Path(__file__).resolve().parents[2] / "configs" / "multi-model.yaml"
SMOLLM2 = "smollm2-135m-instruct"
GEMMA = "gemma3-270m"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(START_TIMEOUT_S + 120)]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    for model in (section.args for section in read_serve_file(FILE).models):
        checkpoint = cached_checkpoint(model.source, name=model.name, sha256=model.source_sha256)
        provide(model.name, checkpoint)
    config = yaml.safe_load(FILE.read_text("utf-8"))
    config["http_options"]["port"] = port = free_port()
    path = tmp_path_factory.mktemp("serve") / FILE.name
    path.write_text(yaml.safe_dump(config), "utf-8")
    url = f"http://127.0.0.1:{port}"
    with LocalServe(path, health_url=f"{url}/health") as serve:
        report = serve.wait_until_ready(threading.Event(), timeout_s=START_TIMEOUT_S)
        assert report.state is State.READY, report
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            yield client


def _chat(client: openai.OpenAI, model: str) -> tuple[str, str]:
    answer = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "What is the capital of France?"}],
        temperature=0,
        max_tokens=16,
    )
    return answer.model, answer.choices[0].message.content or ""


def _complete(client: openai.OpenAI, model: str, prompt: str) -> tuple[str, str, int]:
    answer = client.completions.create(model=model, prompt=prompt, temperature=0, max_tokens=8)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    num_cached = answer.usage.prompt_tokens_details.cached_tokens or 0
    return answer.model, answer.choices[0].text, num_cached


def test_both_models_are_listed_and_ready(client: openai.OpenAI) -> None:
    for name in (SMOLLM2, GEMMA):
        assert _complete(client, name, "Hi")[0] == name  # waits for the gateway to connect
    models = client.models.list().data
    assert [(model.id, model.to_dict()["status"]) for model in models] == [
        (SMOLLM2, "ready"),
        (GEMMA, "ready"),
    ]


def test_an_alias_leads_to_the_model_and_the_answer_carries_its_name(client: openai.OpenAI) -> None:
    model, text = _chat(client, "chat")
    assert model == SMOLLM2
    assert "Paris" in text
    assert _chat(client, SMOLLM2) == (model, text)
    assert _complete(client, "gemma3", "Water boils at 100 degrees")[0] == GEMMA


def test_both_models_answer_at_the_same_time_each_with_its_own_words(client: openai.OpenAI) -> None:
    alone = {name: _complete(client, name, "One, two, three,")[1] for name in (SMOLLM2, GEMMA)}
    assert "four" in alone[SMOLLM2]
    assert "four" in alone[GEMMA]
    with ThreadPoolExecutor(8) as pool:
        names = [SMOLLM2, GEMMA] * 4
        answers = list(pool.map(lambda name: _complete(client, name, "One, two, three,"), names))
    assert [model for model, _, _ in answers] == names
    assert all("four" in text for _, text, _ in answers)


def test_a_prompt_longer_than_the_sliding_window_is_found_in_the_cache(
    client: openai.OpenAI,
) -> None:
    prompt = " ".join(f"Line {number} says {number * 7}." for number in range(200))
    _, first, num_cached = _complete(client, GEMMA, prompt)
    assert num_cached == 0
    _, second, num_cached = _complete(client, GEMMA, prompt)
    assert num_cached > 1000
    assert second == first


def test_a_base_model_says_that_it_cannot_chat(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="has no chat template"):
        _chat(client, GEMMA)


def test_an_unknown_model_is_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        _chat(client, "gpt-none")
