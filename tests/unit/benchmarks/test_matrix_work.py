from benchmarks.engine_cases import Case, decode_case
from benchmarks.matrix_work import step_shapes


def test_decode_steps_are_all_alike() -> None:
    assert step_shapes(decode_case("d", 16, 3), 512) == [(16, 16)] * 3


def test_prompts_share_steps_of_the_budget_and_get_logits_where_they_end() -> None:
    assert step_shapes(Case("p", "prefill", 3, 40), 50) == [(50, 1), (50, 1), (20, 1)]
    assert step_shapes(Case("p", "prefill", 8, 512), 8192) == [(4096, 8)]


def test_an_arriving_prompt_has_what_decodes_leave() -> None:
    case = Case("m", "mixed", 16, 128, arriving_len=100)
    assert step_shapes(case, 66) == [(66, 16), (66, 17)]
