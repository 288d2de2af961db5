import json
from math import inf, nan

from engine.messages import EngineRequest, SamplingParams, TimelineEvent
from engine.timelines import (
    MAX_EDGE_EVENTS,
    MAX_FINISHED,
    MAX_GATEWAY_EVENTS,
    Timelines,
    begin_timeline,
)


def request(
    request_id: str = "r", num_samples: int = 1, timeline: list[TimelineEvent] | None = None
) -> EngineRequest:
    return EngineRequest(
        request_id,
        [1, 2, 3],
        b"",
        [],
        SamplingParams(max_tokens=5, temperature=0, seed=77),
        timeout_s=1,
        num_samples=num_samples,
        timeline=timeline or [],
    )


def test_tells_the_course_of_a_request_without_its_contents() -> None:
    timelines = Timelines()
    timelines.open(begin_timeline(request(timeline=[TimelineEvent("received", 0.0)])))
    for event in (
        TimelineEvent("taken", 0.1),
        TimelineEvent("admitted", 0.2, 2),
        TimelineEvent("restored_disk", 0.25, 1),
        TimelineEvent("chunk", 0.3, 1),
        TimelineEvent("first_token", 0.4),
        TimelineEvent("last_token", 0.9, 5),
    ):
        finished = timelines.add("r", event)
    assert finished is not None
    payload = timelines.to_json("r")
    assert payload is not None
    course = json.loads(payload)
    assert course["is_finished"]
    assert (course["cached_tokens"], course["num_generated_tokens"]) == (2, 5)
    assert course["restored_tokens"] == {"disk": 1}
    assert [event["kind"] for event in course["events"]][:2] == ["received", "taken"]
    assert b"77" not in payload
    assert "token_ids" not in course


def test_finishes_with_the_last_sample_and_only_once() -> None:
    timelines = Timelines()
    timelines.open(begin_timeline(request(num_samples=2)))
    assert timelines.add("r", TimelineEvent("last_token", 1.0, 3)) is None
    finished = timelines.add("r", TimelineEvent("last_token", 2.0, 4))
    assert finished is not None
    assert finished.num_generated_tokens == 7
    assert timelines.add("r", TimelineEvent("last_token", 3.0, 4)) is None
    assert timelines.add("unknown", TimelineEvent("taken", 0.0)) is None


def test_keeps_the_first_and_the_last_events_of_a_very_long_prompt() -> None:
    timeline = begin_timeline(request())
    for number in range(10_000):
        timeline.add(TimelineEvent("chunk", number / 1000, 1))
    course = json.loads(timeline.to_json())
    assert len(course["events"]) == 2 * MAX_EDGE_EVENTS
    assert course["num_events_left_out"] == 10_000 - 2 * MAX_EDGE_EVENTS
    assert (course["events"][0]["at_s"], course["events"][-1]["at_s"]) == (0.0, 9.999)
    assert course["num_chunks"] == 10_000


def test_of_a_gateways_events_only_a_few_and_sound_ones_are_kept() -> None:
    forged = [TimelineEvent(kind, at_s) for kind in ("x" * 9999,) for at_s in (0.0,)]
    broken = [TimelineEvent("received", at_s) for at_s in (nan, inf, -1.0, 1e300)]
    assert begin_timeline(request(timeline=forged + broken)).first_events == []
    flood = [TimelineEvent("queued", 1.0)] * 100_000
    assert len(begin_timeline(request(timeline=flood)).first_events) == MAX_GATEWAY_EVENTS


def test_the_oldest_finished_request_is_forgotten_and_a_live_one_is_not() -> None:
    timelines = Timelines()
    timelines.open(begin_timeline(request("live")))
    for number in range(MAX_FINISHED + 1):
        timelines.open(begin_timeline(request(f"r{number}")))
        timelines.add(f"r{number}", TimelineEvent("last_token", 1.0))
    assert timelines.to_json("r0") is None
    assert timelines.to_json("r1") is not None
    assert timelines.to_json("live") is not None
