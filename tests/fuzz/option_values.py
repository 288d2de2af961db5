"""Values of every field of every route, most of them allowed, for hypothesis to combine."""

from collections.abc import Mapping

from hypothesis import strategies as st

Fields = Mapping[str, st.SearchStrategy[object]]


def mostly(*usual: object, rare: object) -> st.SearchStrategy[object]:
    """``rare`` is refused: a request of several such values would always be."""
    return st.sampled_from([*usual] * (16 // len(usual)) + [rare])


TEXT = st.text(min_size=1, max_size=12) | st.sampled_from(
    [
        *("Hi", "漢字 👩‍👩‍👧", "é" * 20, "\r\n", "\0", " "),
        *("<|im_end|>", "<|im_start|>system\n", "{{ 1 }}"),
    ]
)
TOKEN_ID = st.integers(0, 49_151)
TOKEN_IDS = st.lists(TOKEN_ID, max_size=12)
CONTENT = TEXT | st.lists(
    st.fixed_dictionaries({"type": st.just("text"), "text": TEXT}), max_size=3
)
TOOL_CALL = st.fixed_dictionaries(
    {
        "id": st.just("call_1"),
        "type": st.just("function"),
        "function": st.fixed_dictionaries(
            {
                "name": TEXT,
                "arguments": st.sampled_from(["", "{}", '{"a": [1, {"b": null}]}', "[[", "{{}}"]),
            }
        ),
    }
)
MESSAGE = st.one_of(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "developer", "user", "assistant"]), "content": CONTENT}
    ),
    st.fixed_dictionaries(
        {"role": st.just("assistant"), "tool_calls": st.lists(TOOL_CALL, min_size=1, max_size=2)}
    ),
    st.fixed_dictionaries(
        {"role": st.just("tool"), "content": CONTENT, "tool_call_id": st.just("call_1")}
    ),
)
SAMPLING: Fields = {
    "max_tokens": st.integers(0, 40) | mostly(16, rare=10_000),
    "min_tokens": st.integers(0, 8) | mostly(4, rare=50),
    "temperature": st.sampled_from([0, 0.0, 1e-9, 0.7, 1, 2]),
    "top_p": st.sampled_from([1, 0.5, 1e-9]),
    "top_k": st.sampled_from([-1, 0, 1, 50, 2**31, 2**63 - 1]),
    "min_p": st.sampled_from([0, 0.1, 1]),
    "repetition_penalty": st.sampled_from([1, 1e-3, 1.3, 10]),
    "presence_penalty": st.sampled_from([-2, 0, 2]),
    "frequency_penalty": st.sampled_from([-2, 0.5, 2]),
    "logit_bias": st.dictionaries(TOKEN_ID.map(str), st.sampled_from([-100, 0, 1.5, 100])),
    "seed": st.integers(-(2**63), 2**63 - 1),
    "stop": st.one_of(
        st.sampled_from(["a", " ", "e", "\n", "\ufffd"]),
        st.lists(st.text(min_size=1, max_size=3), max_size=5),
    ),
    "stop_token_ids": st.lists(TOKEN_ID, max_size=4),
    "include_stop_str_in_output": st.booleans(),
    "ignore_eos": st.booleans(),
    "skip_special_tokens": mostly(True, rare=False),
    "n": st.integers(1, 5) | mostly(1, 2, 3, 16, rare=17),
    "stream": st.booleans(),
    "stream_options": st.fixed_dictionaries(
        {}, optional={"include_usage": st.booleans(), "continuous_usage_stats": st.booleans()}
    ),
    "response_format": mostly({"type": "text"}, rare={"type": "json_object"}),
    "return_token_ids": st.booleans(),
    "user": TEXT,
    "priority": st.integers(),
}
CONVERSATION: Fields = {
    "add_generation_prompt": st.booleans(),
    "continue_final_message": st.booleans(),
    "chat_template_kwargs": st.dictionaries(
        st.sampled_from(["enable_thinking", "a"]), st.booleans() | mostly("b", 1, rare="<|im_end|>")
    ),
    "tools": st.lists(
        st.fixed_dictionaries(
            {
                "type": st.just("function"),
                "function": st.fixed_dictionaries(
                    {"name": TEXT}, optional={"parameters": st.just({"type": "object"})}
                ),
            }
        ),
        max_size=1,
    ),
    "tool_choice": mostly("none", "auto", rare="required"),
}
CHAT: Fields = {
    **SAMPLING,
    **CONVERSATION,
    "max_completion_tokens": st.integers(0, 40),
    "logprobs": st.booleans(),
    "top_logprobs": st.integers(0, 20) | mostly(20, rare=21),
    "modalities": mostly(["text"], [], rare=["audio"]),
}
COMPLETION: Fields = {
    **SAMPLING,
    "echo": st.booleans(),
    "logprobs": st.integers(0, 20) | mostly(20, rare=21),
    "best_of": st.integers(1, 6),
    "add_special_tokens": st.booleans(),
    "suffix": mostly("", rare="x"),
}
TOKENIZE: Fields = {
    **CONVERSATION,
    "add_special_tokens": st.booleans(),
    "return_token_strs": st.booleans(),
}
MESSAGES = st.lists(MESSAGE, min_size=1, max_size=4)
PROMPT = st.one_of(
    TEXT,
    st.lists(TEXT, min_size=1, max_size=3),
    st.lists(TOKEN_ID, min_size=1, max_size=8),
    st.lists(st.lists(TOKEN_ID, min_size=1, max_size=4), min_size=1, max_size=3),
)

NEEDED = {"top_logprobs": "logprobs", "stream_options": "stream"}
"""By option, what it is refused without."""
