"""Notices in EC2's words."""

import pytest

from deployments.aws.notices import (
    EVENT_LEAD_S,
    Notice,
    NoticeKind,
    NoticeUnreadable,
    first_due,
    rebalance_time_s,
    scheduled_notices,
    spot_notice,
)

AT_S = 1_505_722_920.0  # 2017-09-18T08:22:00Z


def event(code: str, state: str = "active") -> str:
    return (
        f'{{"NotBefore": "18 Sep 2017 08:22:00 GMT", "Code": "{code}", "State": "{state}", '
        '"EventId": "instance-event-1", "Description": "scheduled reboot", '
        '"NotAfter": "18 Sep 2017 09:17:23 GMT"}'
    )


@pytest.mark.parametrize("action", ["terminate", "stop", "hibernate"])
def test_a_spot_notice_says_what_happens_and_when(action: str) -> None:
    notice = spot_notice(f'{{"action": "{action}", "time": "2017-09-18T08:22:00Z"}}')
    assert notice == Notice(NoticeKind.SPOT, action, AT_S)


def test_a_time_without_a_zone_is_in_utc() -> None:
    assert spot_notice('{"action": "stop", "time": "2017-09-18T08:22:00"}').at_s == AT_S


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<html>",
        "[]",
        '{"action": "terminate"}',
        '{"action": "dance", "time": "2017-09-18T08:22:00Z"}',
        '{"action": "stop", "time": "soon"}',
    ],
)
def test_a_spot_notice_in_other_words_is_unreadable(text: str) -> None:
    with pytest.raises(NoticeUnreadable, match=r"spot/instance-action"):
        spot_notice(text)


def test_scheduled_events_that_are_over_or_off_are_left_out() -> None:
    text = ", ".join(
        [event("system-reboot"), event("instance-stop", "completed"), event("x", "canceled")]
    )
    assert scheduled_notices(f"[{text}]") == [Notice(NoticeKind.SCHEDULED, "system-reboot", AT_S)]
    assert scheduled_notices("[]") == []


@pytest.mark.parametrize(
    "text", ["", "{}", '[{"Code": "x", "NotBefore": "2017-09-18"}]', '[{"Code": "x"}]', "[7]"]
)
def test_scheduled_events_in_other_words_are_unreadable(text: str) -> None:
    with pytest.raises(NoticeUnreadable, match="scheduled"):
        scheduled_notices(text)


def test_a_rebalance_recommendation_has_a_time() -> None:
    assert rebalance_time_s('{"noticeTime": "2017-09-18T08:22:00Z"}') == AT_S
    with pytest.raises(NoticeUnreadable, match="rebalance"):
        rebalance_time_s('{"noticeTime": 1e400}')


def test_spot_is_due_at_once_and_an_event_shortly_before_it() -> None:
    spot = Notice(NoticeKind.SPOT, "terminate", AT_S)
    reboot = Notice(NoticeKind.SCHEDULED, "system-reboot", AT_S)
    assert spot.is_due(AT_S - 86_400)
    assert not reboot.is_due(AT_S - EVENT_LEAD_S - 1)
    assert reboot.is_due(AT_S - EVENT_LEAD_S)
    assert reboot.is_due(AT_S + 1)


def test_the_earliest_that_is_due_comes_first() -> None:
    spot = Notice(NoticeKind.SPOT, "terminate", AT_S)
    sooner = Notice(NoticeKind.SCHEDULED, "system-reboot", AT_S - 60)
    much_later = Notice(NoticeKind.SCHEDULED, "instance-stop", AT_S + 86_400)
    now_s = AT_S - 120
    assert first_due([spot, sooner, much_later], now_s) == sooner
    assert first_due([much_later], now_s) is None
    assert first_due([], now_s) is None
