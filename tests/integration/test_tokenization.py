"""The quickstart model's own tokenizer and template, beside transformers."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from app.text.tokenization import ModelTokenizer
from engine.checkpoints.store import Checkpoint
from engine.messages import ModelCard
from tests.quickstart import quickstart_checkpoint

pytestmark = pytest.mark.integration

WORDS = [
    "the",
    " house",
    "\n",
    "  ",
    "é",
    "e\u0301",
    "漢字",
    "👩\u200d👧",
    "1234",
    "'s",
    "<|im",
    "\t",
    ".",
]
WRITTEN = st.lists(st.sampled_from(WORDS), max_size=12).map("".join) | st.text(max_size=20)
TURNS = st.lists(
    st.tuples(st.sampled_from(["system", "user", "assistant"]), WRITTEN), min_size=1, max_size=6
)


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return quickstart_checkpoint()


@pytest.fixture(scope="module")
def model(checkpoint: Checkpoint) -> ModelTokenizer:
    return ModelTokenizer(
        ModelCard(
            engine_id="e",
            model="m",
            weights_revision="r",
            root_key=b"root",
            block_size_tokens=16,
            max_model_len=8192,
            max_request_tokens=8192,
            vocab_size=checkpoint.config["vocab_size"],
            eos_token_ids=list(checkpoint.eos_token_ids),
            tokenizer_json=checkpoint.tokenizer_path.read_bytes(),
            chat_template=checkpoint.chat_template,
            bos_token=checkpoint.special_tokens.get("bos_token"),
            eos_token=checkpoint.special_tokens.get("eos_token"),
            created_s=0,
        )
    )


@pytest.fixture(scope="module")
def reference(checkpoint: Checkpoint) -> PreTrainedTokenizerBase:
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_file(str(checkpoint.tokenizer_path)),
        chat_template=checkpoint.chat_template,
        **checkpoint.special_tokens,
    )


@given(TURNS)
@settings(max_examples=200, deadline=None)
def test_conversations_are_tokenized_as_transformers_does(
    model: ModelTokenizer, reference: PreTrainedTokenizerBase, turns: list[tuple[str, str]]
) -> None:
    messages = [{"role": role, "content": content} for role, content in turns]
    expected = reference.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    assert model.encode_chat(messages) == expected
    assert model.encode_chat(messages) == expected, "from the cache"


@given(WRITTEN)
@settings(max_examples=200, deadline=None)
def test_texts_are_tokenized_and_shown_as_transformers_does(
    model: ModelTokenizer, reference: PreTrainedTokenizerBase, text: str
) -> None:
    token_ids = model.encode_text(text, add_special_tokens=True)
    assert token_ids == reference(text)["input_ids"]
    shown = model.decode(token_ids)
    assert shown == reference.decode(token_ids)
    token_bytes = (bytes(model.token_text(token_id).bytes) for token_id in token_ids)
    assert b"".join(token_bytes).decode(errors="replace") == shown


def test_the_last_message_is_continued_as_transformers_does(
    model: ModelTokenizer, reference: PreTrainedTokenizerBase
) -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "The answer "}]
    expected = reference.apply_chat_template(messages, continue_final_message=True)["input_ids"]
    token_ids = model.encode_chat(
        messages, add_generation_prompt=False, continue_final_message=True
    )
    assert token_ids == expected
