"""Puts a file in force: Serve first, then the pointer, so that what is on record is what Serve has
taken; and waits until it runs.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import yaml

from deployments.aws.config_history import ConfigHistory, ConfigVersion
from deployments.aws.deploy_lock import DeployLock
from deployments.aws.errors import (
    ConfigUnknown,
    DeployConflict,
    NotRunning,
    ServeAway,
    ServeRefused,
)
from deployments.aws.serve_state import ServeState

POLL_S = 1.0
SILENCE_S = 60.0
"""Serve's API may be away for so long, as while the head's dashboard starts again."""


class Serve(Protocol):
    """Serve's REST API."""

    def state(self) -> ServeState: ...

    def put(self, config: dict[str, Any]) -> None: ...


@dataclass(frozen=True, slots=True)
class Clock:
    now_s: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


def put_in_force(
    text: bytes,
    *,
    serve: Serve,
    history: ConfigHistory,
    lock: DeployLock,
    seen: ConfigVersion | None,
    why: str,
) -> int:
    """Give Serve the file ``text`` and record it; the version that is then in force.

    ``seen`` was in force when the caller began: another one by now is a `DeployConflict`, and
    Serve is not told. Raises `ServeRefused` where Serve doesn't take it: then nothing has changed.
    """
    with lock.held():
        current = history.current()
        _check_unchanged(seen, current)
        key = history.store(text)
        in_force = "nothing is" if current is None else f"version {current.version} stays"
        try:
            serve.put(document_of(text))
        except ServeRefused as error:
            raise ServeRefused(f"Serve refused the file, {in_force} in force: {error}") from error
        except ServeAway as error:
            raise ServeAway(
                f"{error} Whether it took the file isn't known, on record {in_force} in force: "
                "deploy again"
            ) from error
        if current is not None and current.key == key:
            return current.version
        return history.point_at(key, after=current, why=why)


def redeploy_in_force(
    serve: Serve, history: ConfigHistory, *, timeout_s: float, clock: Clock
) -> int | None:
    """What a head does when it starts: give a Serve without applications what is in force.

    Waits up to ``timeout_s`` for Serve's API. Takes no lock, for a head may not write: it looks
    again afterwards, and repeats if the pointer has moved. The version; None if there was nothing
    to do.
    """
    deadline_s = clock.now_s() + timeout_s
    while True:
        try:
            if serve.state().applications:
                return None
            break
        except ServeAway:
            if clock.now_s() >= deadline_s:
                raise
            clock.sleep(POLL_S)
    current = history.pointer()
    if current is None:
        return None
    while True:
        serve.put(document_of(history.read(current)))
        latest = history.pointer()
        if latest is None or latest.key == current.key:
            return current.version
        current = latest


def wait_until_running(
    names: Sequence[str],
    serve: Serve,
    *,
    timeout_s: float,
    report: Callable[[str], None],
    clock: Clock,
) -> None:
    """Blocks until all applications run; a line to ``report`` whenever something has changed.

    Raises `NotRunning` as soon as one has failed, and after ``timeout_s``; `ServeAway` after a
    minute without an answer.
    """
    deadline_s = clock.now_s() + timeout_s
    answered_s = clock.now_s()
    last = ""
    waiting = list(names)
    while True:
        try:
            state = serve.state()
        except ServeAway:
            if clock.now_s() - answered_s >= SILENCE_S:
                raise
        else:
            answered_s = clock.now_s()
            waiting = state.waiting(names)
            if failed := state.failed(names):
                raise NotRunning("; ".join(state.describe(name) for name in failed))
            if not waiting:
                return
            line = ", ".join(state.describe(name) for name in waiting)
            if line != last:
                report(f"{len(names) - len(waiting)} of {len(names)} run; {line}")
            last = line
        if clock.now_s() >= deadline_s:
            raise NotRunning(
                f"after {timeout_s:.0f} s there still don't run: {last or ', '.join(waiting)}"
            )
        clock.sleep(POLL_S)


def document_of(text: bytes) -> dict[str, Any]:
    """Of a stored file. Raises `ConfigUnknown` for what can't be one."""
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigUnknown("what is stored is not YAML: deploy the file again") from error
    if not isinstance(document, dict) or not isinstance(document.get("applications"), list):
        raise ConfigUnknown("what is stored is no file for Serve: deploy the file again")
    return document


def application_names(document: dict[str, Any]) -> list[str]:
    return [str(application.get("name", "default")) for application in document["applications"]]


def _check_unchanged(seen: ConfigVersion | None, current: ConfigVersion | None) -> None:
    if current is not None and (seen is None or seen.version != current.version):
        raise DeployConflict(
            f"{current.who or 'somebody'} put version {current.version} in force meanwhile "
            f"({current.why or 'no reason given'}): look at headwater status, then run it again"
        )
