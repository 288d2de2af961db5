"""`headwater serve FILE`: checks, pulls the models, serves in the foreground until Ctrl-C."""

import argparse
import json
import shlex
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deployments.local_serve import LocalServe
    from deployments.serve_file import ServeFile

HELP = "check a `serve run` file, pull its models and serve it on this machine"

READY_TIMEOUT_S = 600.0
WATCH_PERIOD_S = 0.5

QUESTION = "What is the capital of France?"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, help="the YAML file")


def run(args: argparse.Namespace) -> int:
    from deployments.environment import headwater_home, ray_address
    from deployments.preflight import check_file, check_models, this_machine
    from deployments.serve_file import read_serve_file
    from engine.checkpoints.errors import CheckpointError
    from engine.checkpoints.pull import pull

    started_s = time.monotonic()
    address = ray_address()
    if address is not None:
        print(
            f"RAY_ADDRESS names the running cluster {address}: use `serve deploy {args.file}` "
            "for it, or unset RAY_ADDRESS to serve on this machine alone",
            file=sys.stderr,
        )
        return 1
    home = headwater_home()
    file = read_serve_file(args.file)
    faults = check_file(file, home=home, machine=this_machine())
    for fault in faults:
        print(file.describe(fault), file=sys.stderr)
    if faults:
        return 1
    if not file.gateways:
        print(f"{file.path}: has no gateway, so nothing would answer: add one", file=sys.stderr)
        return 1
    try:
        for model in (section.args for section in file.models):
            pull(model.source, name=model.name, home=home, sha256=model.source_sha256)
    except CheckpointError as error:
        print(error, file=sys.stderr)
        return 1
    faults = list(check_models(file, home))  # of those that have just come, too
    for fault in faults:
        print(file.describe(fault), file=sys.stderr)
    return 1 if faults else _serve(file, started_s)


def _serve(file: "ServeFile", started_s: float) -> int:
    from deployments.local_serve import LocalServe
    from deployments.report import State

    url = f"http://{_reachable(file.http_host)}:{file.http_port}"
    interrupted = threading.Event()
    with LocalServe(file.path, health_url=f"{url}/health") as serve:
        _handle_signals(serve, interrupted)
        print(f"starting Ray Serve; logs in {serve.logs}", flush=True)
        report = serve.wait_until_ready(interrupted, timeout_s=READY_TIMEOUT_S)
        if report.state is State.FAILED:
            serve.is_keeping_logs = True
            print(f"{file.path}: {report.detail} (logs: {serve.logs})", file=sys.stderr)
            return 1
        if report.state is State.STARTING:  # interrupted
            return 0
        print(f"ready after {time.monotonic() - started_s:.1f} s", flush=True)
        print(_invitation(file, url, serve.dashboard_url), flush=True)
        while not interrupted.wait(WATCH_PERIOD_S):
            if not serve.is_alive():
                serve.is_keeping_logs = True
                print(f"Ray Serve ended by itself (logs: {serve.logs})", file=sys.stderr)
                return 1
        print("stopping: open answers are finished first, Ctrl-C again cuts them", flush=True)
        serve.drain()
    return 0


def _handle_signals(serve: "LocalServe", interrupted: threading.Event) -> None:
    def on_signal(_number: int, _frame: FrameType | None) -> None:
        if interrupted.is_set():
            serve.kill()
        interrupted.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)


def _reachable(host: str) -> str:
    """An address a client on this machine can use."""
    return "127.0.0.1" if host in ("0.0.0.0", "") else host  # noqa: S104  compared, not bound


def _invitation(file: "ServeFile", url: str, dashboard_url: str) -> str:
    """Commands to paste."""
    routes = [route for gateway in file.gateways for route in gateway.config.models]
    if not routes:
        return f"\n  {url}/health\n\ndashboard: {dashboard_url}   stop: Ctrl-C"
    needs_key = any(gateway.config.api_keys for gateway in file.gateways)
    export = "\n  export API_KEY=...  # one of the api_keys in the file\n" if needs_key else ""
    messages = [{"role": "user", "content": QUESTION}]
    body = {"model": routes[0].name, "messages": messages, "temperature": 0}
    headers = "-H 'Content-Type: application/json'"
    headers += ' -H "Authorization: Bearer $API_KEY"' if needs_key else ""
    key = "os.environ['API_KEY']" if needs_key else "'none'"
    imports = "os, openai" if needs_key else "openai"
    python = (
        f"import {imports}; print(openai.OpenAI(base_url='{url}/v1', api_key={key})"
        f".chat.completions.create(model='{routes[0].name}', messages={messages!r}, "
        "temperature=0).choices[0].message.content)"
    )
    return (
        f"{export}\n  curl {url}/v1/chat/completions {headers} \\\n"
        f"    -d {shlex.quote(json.dumps(body))}\n"
        f'\n  {shlex.quote(sys.executable)} -c "{python}"\n'
        f"\ndashboard: {dashboard_url}   stop: Ctrl-C"
    )
