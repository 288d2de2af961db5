"""Serve's REST API on the head's dashboard. Knows no AWS.

Straight to the address: no proxy of the environment, no redirect, which would carry the token off.
"""

import http.client
import json
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from pydantic import ValidationError

from deployments.aws.errors import ServeAway, ServeRefused, TunnelBroken
from deployments.aws.serve_state import ServeState
from deployments.report import reason_in

_APPLICATIONS = "/api/serve/applications/"
_ASK_TIMEOUT_S = 30.0
_PUT_TIMEOUT_S = 120.0
"""Serve itself is started by the first one."""
_MAX_ANSWER_BYTES = 64 << 20


class ServeApi:
    """At ``address``; ``why_ended`` says why the way there is no more, None while it is."""

    def __init__(
        self,
        address: str,
        *,
        token: str | None,
        why_ended: Callable[[], str | None] = lambda: None,
    ) -> None:
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ServeAway(f"{address!r} is no address: write it as http://127.0.0.1:8265")
        self._parts = parts
        self.address = address
        self._token = token
        self._why_ended = why_ended

    def state(self) -> ServeState:
        """Raises `ServeAway`, `TunnelBroken`."""
        status, text = self._ask("GET", _ASK_TIMEOUT_S)
        self._check(status, text)
        try:
            return ServeState.model_validate_json(text)
        except ValidationError as error:
            raise ServeAway(
                f"{self.address} doesn't answer as Serve does: check the address, and that the "
                "cluster's Ray is of this version"
            ) from error

    def put(self, config: dict[str, Any]) -> None:
        """Make Serve run these applications and no others; returns before they do.

        Raises `ServeRefused`, `ServeAway`, `TunnelBroken`.
        """
        status, text = self._ask("PUT", _PUT_TIMEOUT_S, json.dumps(config).encode())
        if status == http.HTTPStatus.BAD_REQUEST:
            raise ServeRefused(reason_in(text))
        self._check(status, text)

    def _check(self, status: int, text: str) -> None:
        if status == http.HTTPStatus.OK:
            return
        if status in (http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.FORBIDDEN):
            raise ServeAway(
                f"{self.address} doesn't take the cluster's token ({reason_in(text)}): is it this "
                "cluster's head? After a change of the secret, the head has to start again"
            )
        raise ServeAway(f"{self.address} answered with status {status}: {reason_in(text)}")

    def _ask(self, method: str, timeout_s: float, body: bytes | None = None) -> tuple[int, str]:
        is_secure = self._parts.scheme == "https"
        kind = http.client.HTTPSConnection if is_secure else http.client.HTTPConnection
        headers = {"Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        try:
            connection = kind(str(self._parts.hostname), self._parts.port, timeout=timeout_s)
            try:
                path = f"{self._parts.path.rstrip('/')}{_APPLICATIONS}"
                connection.request(method, path, body=body, headers=headers)
                response = connection.getresponse()
                text = response.read(_MAX_ANSWER_BYTES).decode("utf-8", "replace")
            finally:
                connection.close()
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = self._why_ended()
            if reason is not None:
                raise TunnelBroken(f"the tunnel to the head has ended ({reason})") from error
            words = " ".join(str(error).split()) or type(error).__name__
            raise ServeAway(
                f"Serve's API at {self.address} can't be reached ({words}): is the head up?"
            ) from error
        return response.status, text
