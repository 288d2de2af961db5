"""What the child of `headwater serve` makes of Serve's status."""

import pytest
from ray.serve.schema import (
    ApplicationStatus,
    ApplicationStatusOverview,
    DeploymentStatus,
    DeploymentStatusOverview,
    DeploymentStatusTrigger,
    ServeStatus,
)

from deployments.report import Report, State
from deployments.serve_run import report_of


def _status(*, message: str = "", **applications: ApplicationStatus) -> ServeStatus:
    deployment = DeploymentStatusOverview(
        status=DeploymentStatus.DEPLOY_FAILED,
        status_trigger=DeploymentStatusTrigger.REPLICA_STARTUP_FAILED,
        replica_states={},
        message=message,
    )
    return ServeStatus(
        applications={
            name: ApplicationStatusOverview(
                status=status,
                message="the application's own words",
                last_deployed_time_s=0.0,
                deployments={"EngineReplica": deployment},
            )
            for name, status in applications.items()
        }
    )


def test_before_any_application_serve_itself_is_starting() -> None:
    assert report_of(_status()) == Report(State.STARTING, "Serve")


def test_what_does_not_run_yet_is_named() -> None:
    status = _status(a=ApplicationStatus.RUNNING, b=ApplicationStatus.DEPLOYING)
    assert report_of(status) == Report(State.STARTING, "b")


def test_ready_when_all_run() -> None:
    status = _status(a=ApplicationStatus.RUNNING, b=ApplicationStatus.RUNNING)
    assert report_of(status).state is State.READY


@pytest.mark.parametrize("failed", [ApplicationStatus.DEPLOY_FAILED, ApplicationStatus.UNHEALTHY])
def test_one_failure_is_the_whole_files_with_the_deployments_reason(
    failed: ApplicationStatus,
) -> None:
    status = _status(
        a=ApplicationStatus.DEPLOYING, b=failed, message="Traceback\nx.y.NoRoom: lower it\n"
    )
    assert report_of(status) == Report(State.FAILED, "b: lower it")


def test_a_reason_that_names_its_application_is_not_named_twice() -> None:
    status = _status(b=ApplicationStatus.DEPLOY_FAILED, message="b: no room")
    assert report_of(status).detail == "b: no room"


def test_without_a_deployments_reason_the_application_gives_it() -> None:
    status = _status(b=ApplicationStatus.DEPLOY_FAILED)
    assert report_of(status).detail == "b: the application's own words"
