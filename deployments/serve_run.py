"""`serve run FILE` with a Ray of its own: the child process of `headwater serve`.

Ray's command starts Ray by itself, but then nobody can choose the dashboard's port, keep it from
joining a cluster it happens to find, or keep all logs off the terminal. So Ray is started here
first, and Ray's command uses it. A thread writes what becomes of the applications, one `Report`
per line, to the descriptor it is given, until they run or have failed. On `DRAIN_SIGNAL` the
gateway goes first, which takes until its open answers are finished; on Ctrl-C everything ends at
once, and so it does when standard input closes, that is, also when the parent was killed.
"""

import argparse
import os
import signal
import sys
import threading
import time
from pathlib import Path

import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.schema import ApplicationStatus, ServeStatus
from ray.serve.scripts import cli

from deployments.haproxy import LOOPBACK
from deployments.report import DRAIN_SIGNAL, Report, State, reason_in

OBJECT_STORE_BYTES = 128 * 1024 * 1024
"""Nothing large goes through Ray's objects here; Ray's own default is a third of the memory."""

REPORT_PERIOD_S = 0.2

_FAILED = (ApplicationStatus.DEPLOY_FAILED, ApplicationStatus.UNHEALTHY)


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--dashboard-port", type=int, required=True)
    parser.add_argument("--report-descriptor", type=int, required=True)
    args = parser.parse_args(argv)
    # A shell starts background jobs with this signal ignored, and children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    ray.init(
        address="local",
        namespace="serve",
        include_dashboard=True,
        dashboard_host=LOOPBACK,
        dashboard_port=args.dashboard_port,
        object_store_memory=OBJECT_STORE_BYTES,
        log_to_driver=False,
    )
    threading.Thread(target=_report, args=(args.report_descriptor,), daemon=True).start()
    signal.signal(
        DRAIN_SIGNAL, lambda *_: threading.Thread(target=_drain_and_end, daemon=True).start()
    )
    cli.main(["run", str(args.file)], prog_name="serve")


def _end_with_stdin() -> None:
    # Not by sys.stdin: the interpreter cannot shut down while a thread waits in its buffer.
    while os.read(sys.stdin.fileno(), 1):
        pass
    os.kill(os.getpid(), signal.SIGINT)


def _drain_and_end() -> None:
    from deployments.build import GATEWAY_DEPLOYMENT  # not at the start: it imports all the rest

    # Ray's command would end Serve's proxy first, and every open answer with it.
    try:
        for name, application in serve.status().applications.items():
            if GATEWAY_DEPLOYMENT in application.deployments:
                serve.delete(name)
    finally:
        os.kill(os.getpid(), signal.SIGINT)


def _report(descriptor: int) -> None:
    last: Report | None = None
    with os.fdopen(descriptor, "wb") as pipe:
        while last is None or last.state is State.STARTING:
            time.sleep(REPORT_PERIOD_S)
            try:
                report = report_of(serve.status())
            except (RayServeException, RayError):
                continue  # Serve itself is still starting, or its controller starts again
            if report != last:
                pipe.write(report.to_line())
                pipe.flush()
            last = report


def report_of(status: ServeStatus) -> Report:
    """FAILED as soon as one application is, READY when all run."""
    for name, application in status.applications.items():
        if application.status in _FAILED:
            reasons = (d.message for d in application.deployments.values() if d.message)
            reason = reason_in(next(reasons, application.message))
            return Report(
                State.FAILED, reason if reason.startswith(f"{name}: ") else f"{name}: {reason}"
            )
    waiting = [
        name
        for name, application in status.applications.items()
        if application.status != ApplicationStatus.RUNNING
    ]
    if waiting or not status.applications:
        return Report(State.STARTING, ", ".join(waiting) or "Serve")
    return Report(State.READY, "all applications run")


if __name__ == "__main__":
    main(sys.argv[1:])
