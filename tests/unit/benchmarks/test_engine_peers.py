from benchmarks.engine_peers import fastest_budget


def test_the_budget_that_is_fastest_over_all_cases_is_taken() -> None:
    trials = {"2048": {"a": 100.0, "b": 100.0}, "4096": {"a": 90.0, "b": 120.0}}
    assert fastest_budget(trials) == "4096"
    trials["4096"]["b"] = 110.0
    assert fastest_budget(trials) == "2048"
