"""What `headwater serve` hears of the start."""

from deployments.report import Report, State, reason_in


def test_a_report_survives_its_line() -> None:
    report = Report(State.FAILED, 'model "x": no room\nat all')
    line = report.to_line()
    assert line.count(b"\n") == 1
    assert Report.from_line(line) == report


def test_the_reason_in_a_traceback_is_the_error_without_its_class() -> None:
    traceback = (
        "Traceback (most recent call last):\n  File x, line 1\n"
        "engine.rank_process.EngineStartError: out of memory: lower kv_cache_bytes\n\n"
    )
    assert reason_in(traceback) == "out of memory: lower kv_cache_bytes"


def test_a_plain_message_is_its_own_reason() -> None:
    assert reason_in("port 8000: in use") == "port 8000: in use"
    assert reason_in("") == "no reason was given"
