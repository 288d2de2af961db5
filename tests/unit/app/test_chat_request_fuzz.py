"""Whatever JSON comes in: it is understood, or refused as a bad request with a field of its own."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from app.body import parse_json_object
from app.chat_request import ChatRequest, parse_chat_request
from app.errors import InvalidRequestError
from app.sampling import sampling_params
from app.tokenization import ModelTokenizer
from tests.unit.app.fakes import make_card

CARD = make_card(max_model_len=100_000)
TOKENIZER = ModelTokenizer(CARD)

TEXT = st.text(max_size=8) | st.sampled_from(["text", "user", "tool", "<|im_end|>", "none"])
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | TEXT
KEYS = st.sampled_from(
    ["role", "content", "name", "tool_calls", "type", "text", "function", "include_usage"]
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=2),
    max_leaves=4,
)
PART = st.fixed_dictionaries({"type": st.just("text"), "text": TEXT})
MESSAGE = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["system", "developer", "user", "assistant", "tool"]),
        "content": TEXT | st.lists(PART, max_size=2) | JSON,
    },
    optional={
        "tool_calls": st.lists(st.dictionaries(KEYS, JSON, max_size=2), max_size=2),
        "name": TEXT,
    },
)
FIELDS = sorted(ChatRequest.model_fields.keys() - {"model", "messages"})
BODY = st.builds(
    lambda model, messages, fields: {"model": model, "messages": messages} | fields,
    TEXT,
    st.lists(MESSAGE, min_size=1, max_size=2) | JSON,
    st.dictionaries(st.sampled_from(FIELDS), st.none() | JSON, max_size=1),
)


@given(BODY | JSON)
@settings(max_examples=300)
def test_any_json_is_answered_or_refused(value: Any) -> None:
    body = json.dumps(value).encode()
    try:
        request = parse_chat_request(parse_json_object(body))
        prompt = TOKENIZER.prompt([message.for_template() for message in request.messages])
        sampling = sampling_params(request, len(prompt.token_ids), CARD)
    except InvalidRequestError as error:
        name = (error.param or "").split("[")[0].split(".")[0]
        assert not isinstance(value, dict) or name in ChatRequest.model_fields
        return
    assert 0 <= sampling.seed < 2**64
    assert 0 <= sampling.temperature <= 2
    assert 1 <= sampling.max_tokens <= CARD.max_model_len
