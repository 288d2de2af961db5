"""Runs on each node beside Ray: when EC2 announces the end of the instance, Ray drains the node.

    python -m deployments.aws.node_agent

Serve then starts the replicas elsewhere, and answers that run here go on there. Asks the instance's
metadata service, which needs no permission and no other host. Must not know Ray: a process of its
own talks to it.
"""

import logging
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from deployments.aws.instance_metadata import InstanceMetadata, MetadataAway
from deployments.aws.notices import (
    REBALANCE_PATH,
    SCHEDULED_EVENTS_PATH,
    SPOT_ACTION_PATH,
    Notice,
    NoticeUnreadable,
    first_due,
    rebalance_time_s,
    scheduled_notices,
    spot_notice,
)
from deployments.environment import instance_id, instance_metadata_url, ray_node_type

logger = logging.getLogger("headwater.node_agent")

POLL_S = 2.0
_DRAIN_TIMEOUT_S = 30.0
_LONGEST_BACK_OFF_S = 16.0
_HEAD = "head"

Drain = Callable[[Notice, float], None]
"""Gets the notice and the seconds left. Raises `DrainFailed`."""


class DrainFailed(Exception):
    """Ray wasn't told: try again."""


class NodeAgent:
    """Drains its node once per notice, and again only if the end comes sooner than it was said."""

    def __init__(
        self,
        metadata: InstanceMetadata,
        drain: Drain,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``clock``: seconds of Unix time."""
        self._metadata = metadata
        self._drain = drain
        self._clock = clock
        self._drained: Notice | None = None
        self._failures = 0
        self._retry_at_s = 0.0
        self._said: set[str] = set()

    def check(self) -> None:
        """Ask once, and drain if there is reason to. Raises nothing that another try may mend."""
        due = first_due(self._notices(), self._clock())
        if due is None or not self._is_news(due) or self._clock() < self._retry_at_s:
            return
        left_s = max(1.0, due.at_s - self._clock())
        logger.warning("%s notice: %s in %.0f s: draining", due.kind, due.action, left_s)
        try:
            self._drain(due, left_s)
        except DrainFailed as error:
            self._failures += 1
            wait_s = min(2.0**self._failures, _LONGEST_BACK_OFF_S)
            self._retry_at_s = self._clock() + wait_s
            logger.error("not drained, again in %.0f s: %s", wait_s, error)
            return
        self._drained, self._failures = due, 0

    def run(self, stop: threading.Event) -> None:
        """Until ``stop``; whatever goes wrong, the next time may be better."""
        while not stop.is_set():
            try:
                self.check()
            except Exception:
                logger.exception("the check failed")
            stop.wait(POLL_S)

    def _is_news(self, notice: Notice) -> bool:
        return self._drained is None or notice.at_s < self._drained.at_s

    def _notices(self) -> list[Notice]:
        """Each source by itself: one that fails doesn't hide what the others say."""
        notices: list[Notice] = []
        if (text := self._read(SPOT_ACTION_PATH)) is not None:
            self._collect(lambda: notices.append(spot_notice(text)))
        if (events := self._read(SCHEDULED_EVENTS_PATH)) is not None:
            self._collect(lambda: notices.extend(scheduled_notices(events)))
        if (advice := self._read(REBALANCE_PATH)) is not None:
            self._collect(lambda: self._log_rebalance(advice))
        return notices

    def _read(self, path: str) -> str | None:
        try:
            return self._metadata.read(path)
        except MetadataAway as error:
            self._say_once(str(error))
            return None

    def _collect(self, take: Callable[[], None]) -> None:
        try:
            take()
        except NoticeUnreadable as error:
            self._say_once(str(error))

    def _log_rebalance(self, text: str) -> None:
        """An interruption has become likelier; whoever drained at once would leave nodes for
        nothing."""
        rebalance_time_s(text)
        self._say_once(f"EC2 recommends to leave this instance: {text}")

    def _say_once(self, words: str) -> None:
        """The same words every two seconds tell nobody more."""
        if words not in self._said:
            if len(self._said) >= 100:
                self._said.clear()
            self._said.add(words)
            logger.warning("%s", words)


def drain_by_process(instance: str) -> Drain:
    """Through `deployments.aws.node_drain`."""

    def drain(notice: Notice, left_s: float) -> None:
        command = [
            *(sys.executable, "-m", "deployments.aws.node_drain", "--instance", instance),
            *("--left-s", f"{left_s:.1f}", "--message", f"{notice.kind}: {notice.action}"),
        ]
        run_drain(command)

    return drain


def run_drain(command: list[str], timeout_s: float = _DRAIN_TIMEOUT_S) -> None:
    """Raises `DrainFailed` with the last line that it said."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DrainFailed(str(error)) from error
    lines = (done.stderr or done.stdout).strip().splitlines()
    if done.returncode != 0:
        raise DrainFailed(lines[-1] if lines else f"exit status {done.returncode}")
    logger.info("%s", done.stdout.strip())


def log_only(notice: Notice, left_s: float) -> None:
    """The head can't move: its group replaces it."""
    logger.error("the head ends in %.0f s (%s): it isn't drained", left_s, notice.action)


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    metadata = InstanceMetadata(instance_metadata_url())
    instance = instance_id() or _wait_for_instance_id(metadata, stop)
    if instance is not None:
        is_head = ray_node_type() == _HEAD
        logger.info("watching over %s", instance)
        NodeAgent(metadata, log_only if is_head else drain_by_process(instance)).run(stop)
    return 0


def _wait_for_instance_id(metadata: InstanceMetadata, stop: threading.Event) -> str | None:
    """None if it is to stop before anybody said."""
    while not stop.is_set():
        try:
            found = metadata.read("instance-id")
        except MetadataAway as error:
            logger.warning("%s", error)
            found = None
        if found:
            return found
        stop.wait(POLL_S)
    return None


if __name__ == "__main__":
    sys.exit(main())
