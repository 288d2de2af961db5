"""Putting a file in force and waiting for it: order, refusals, conflicts; no AWS, no Serve."""

from typing import Any

import pytest

from deployments.aws.aws_clients import aws_errors
from deployments.aws.deploy_lock import HELD_S, LOCK_KEY
from deployments.aws.deployment_run import (
    SILENCE_S,
    document_of,
    redeploy_in_force,
    wait_until_running,
)
from deployments.aws.errors import (
    AwsRefused,
    ConfigUnknown,
    DeployConflict,
    NotRunning,
    ServeAway,
    ServeRefused,
)
from deployments.aws.serve_state import ServeState
from tests.unit.deployments.aws.fake_cluster import (
    FIRST,
    SECOND,
    Cluster,
    FakeServe,
    Time,
    refusal,
)


def states(**statuses: str) -> ServeState:
    return ServeState.model_validate(
        {"applications": {name: {"status": status} for name, status in statuses.items()}}
    )


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_serve_is_told_before_the_pointer_moves(cluster: Cluster) -> None:
    told: list[int] = []
    cluster.ssm.before_put = lambda: told.append(len(cluster.serve.puts))
    assert cluster.put(FIRST, None) == 1
    assert told == [1]
    version = cluster.history.current()
    assert version is not None
    assert cluster.history.read(version) == FIRST
    assert (version.who, version.why) == ("arn:aws:iam::1:user/ada", "test")
    assert LOCK_KEY not in cluster.s3.objects


def test_what_is_in_force_already_is_told_to_serve_but_makes_no_version(cluster: Cluster) -> None:
    cluster.put(FIRST, None)
    assert cluster.put(FIRST, cluster.history.current()) == 1
    assert len(cluster.serve.puts) == 2


def test_a_version_that_came_meanwhile_stops_the_deploy_before_serve_is_told(
    cluster: Cluster,
) -> None:
    seen = cluster.history.current()
    cluster.put(FIRST, seen)
    with pytest.raises(DeployConflict, match="ada put version 1 in force meanwhile"):
        cluster.put(SECOND, seen)
    assert len(cluster.serve.puts) == 1
    assert LOCK_KEY not in cluster.s3.objects


@pytest.mark.parametrize("is_first", [True, False])
def test_a_pointer_that_moves_in_the_same_moment_is_told(
    cluster: Cluster, *, is_first: bool
) -> None:
    if not is_first:
        cluster.put(FIRST, None)
    cluster.ssm.before_put = lambda: cluster.ssm.values.append(("serve/other.yaml", ""))
    with pytest.raises(DeployConflict, match="at the same moment"):
        cluster.put(SECOND, cluster.history.current())


def test_a_refused_file_changes_nothing_and_says_what_stays(cluster: Cluster) -> None:
    cluster.serve.refusal = ServeRefused("bad option")
    with pytest.raises(ServeRefused, match=r"nothing is in force: bad option"):
        cluster.put(FIRST, None)
    cluster.serve.refusal = None
    cluster.put(FIRST, None)
    cluster.serve.refusal = ServeRefused("bad option")
    with pytest.raises(ServeRefused, match=r"version 1 stays in force: bad option"):
        cluster.put(SECOND, cluster.history.current())
    assert len(cluster.ssm.values) == 1


def test_a_serve_that_breaks_off_leaves_the_record_and_says_that_nobody_knows(
    cluster: Cluster,
) -> None:
    cluster.serve.refusal = ServeAway("it can't be reached.")
    with pytest.raises(ServeAway, match="Whether it took the file isn't known"):
        cluster.put(FIRST, None)
    assert cluster.history.current() is None


def test_who_holds_the_lock_is_waited_for_only_until_it_expires(cluster: Cluster) -> None:
    with (
        cluster.lock.held(),
        pytest.raises(DeployConflict, match=r"me is deploying: .* in 300 s"),
        cluster.lock.held(),
    ):
        pytest.fail("two at once")
    cluster.s3.objects[LOCK_KEY] = b'{"holder": "dead", "until_s": 300}'
    cluster.time.now_s = HELD_S + 1
    assert cluster.put(FIRST, None) == 1


def test_a_lock_that_was_taken_over_is_left_to_the_other(cluster: Cluster) -> None:
    with cluster.lock.held():
        cluster.s3.objects[LOCK_KEY] = b'{"holder": "other", "until_s": 900}'
    assert b"other" in cluster.s3.objects[LOCK_KEY]


def test_rolling_back_finds_the_last_other_file(cluster: Cluster) -> None:
    for text in (FIRST, SECOND, FIRST):
        cluster.put(text, cluster.history.current())
    assert cluster.history.before(None).version == 2
    assert cluster.history.before(1).version == 1
    with pytest.raises(ConfigUnknown, match="there is no version 9: AWS has 1 to 3"):
        cluster.history.before(9)


def test_a_new_head_gets_what_is_in_force_and_what_replaces_it_meanwhile(cluster: Cluster) -> None:
    cluster.put(FIRST, None)
    cluster.serve.puts.clear()
    original = cluster.serve.put

    def put(config: dict[str, Any]) -> None:
        original(config)
        if len(cluster.serve.puts) == 1:
            cluster.ssm.values.append((cluster.history.store(SECOND), "another"))

    cluster.serve.put = put  # type: ignore[method-assign]
    version = redeploy_in_force(
        cluster.serve, cluster.history, timeout_s=10, clock=cluster.time.clock
    )
    assert version == 2
    assert cluster.serve.puts == [document_of(FIRST), document_of(SECOND)]


def test_a_new_head_waits_for_its_dashboard_but_not_for_ever(cluster: Cluster) -> None:
    cluster.serve.answers = [ServeAway("starting"), ServeAway("starting"), ServeState()]
    run = {"timeout_s": 10.0, "clock": cluster.time.clock}
    assert redeploy_in_force(cluster.serve, cluster.history, **run) is None  # type: ignore[arg-type]
    cluster.serve.answers = [ServeAway("starting")]
    with pytest.raises(ServeAway):
        redeploy_in_force(cluster.serve, cluster.history, **run)  # type: ignore[arg-type]
    assert 10 <= cluster.time.now_s <= 14


def wait(serve: FakeServe, time: Time, lines: list[str], timeout_s: float = 100.0) -> None:
    wait_until_running(
        ["alpha", "beta"], serve, timeout_s=timeout_s, report=lines.append, clock=time.clock
    )


def test_waiting_tells_changes_once_and_ends_when_all_run() -> None:
    deploying = states(alpha="RUNNING", beta="DEPLOYING")
    serve = FakeServe([ServeState(), deploying, deploying, states(alpha="RUNNING", beta="RUNNING")])
    lines: list[str] = []
    wait(serve, Time(), lines)
    assert lines == [
        "0 of 2 run; alpha NOT_STARTED, beta NOT_STARTED",
        "1 of 2 run; beta DEPLOYING",
    ]


def test_waiting_ends_with_the_first_that_fails() -> None:
    serve = FakeServe([states(alpha="DEPLOYING", beta="DEPLOY_FAILED")])
    with pytest.raises(NotRunning, match=r"^beta DEPLOY_FAILED$"):
        wait(serve, Time(), [])


def test_an_unhealthy_application_may_recover() -> None:
    serve = FakeServe(
        [states(alpha="RUNNING", beta="UNHEALTHY"), states(alpha="RUNNING", beta="RUNNING")]
    )
    lines: list[str] = []
    wait(serve, Time(), lines)
    assert lines == ["1 of 2 run; beta UNHEALTHY"]


def test_waiting_ends_after_its_time_and_says_what_is_missing() -> None:
    time = Time()
    with pytest.raises(NotRunning, match="after 7 s there still don't run: beta DEPLOYING"):
        wait(FakeServe([states(alpha="RUNNING", beta="DEPLOYING")]), time, [], timeout_s=7)
    assert time.now_s == 7


def test_waiting_bears_a_short_silence_and_no_long_one() -> None:
    running = states(alpha="RUNNING", beta="RUNNING")
    wait(FakeServe([*[ServeAway("away")] * 5, running]), Time(), [])
    time = Time()
    with pytest.raises(ServeAway):
        wait(FakeServe([ServeAway("away")]), time, [], timeout_s=1000)
    assert time.now_s == SILENCE_S


@pytest.mark.parametrize("text", [b"a: [", b"[]", b"applications: 3", b"\x00"])
def test_what_is_no_file_for_serve_is_told(text: bytes) -> None:
    with pytest.raises(ConfigUnknown, match="deploy the file again"):
        document_of(text)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("ExpiredTokenException", "have expired: log in again"),
        ("UnrecognizedClientException", "AWS doesn't know the credentials"),
        ("AccessDeniedException", "access is denied"),
        ("NoSuchBucket", "the bucket doesn't exist"),
        ("ThrottlingException", "ThrottlingException"),
    ],
)
def test_what_aws_refuses_is_one_line_with_what_to_do(code: str, words: str) -> None:
    with (
        pytest.raises(AwsRefused, match=f"^cannot read it: .*{words}") as caught,
        aws_errors("read it"),
    ):
        raise refusal(code)
    assert "\n" not in str(caught.value)
