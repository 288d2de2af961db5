"""`headwater autoscale explain`: the last decisions of a running cluster's autoscaler, with their
reasons, and which nodes hold which weights.

The gateway says where the autoscaler listens, which is on its node's private address: run it on a
node of the cluster.
"""

import argparse
import json
import sys
import urllib.request
from urllib.error import HTTPError

import msgspec

from deployments.autoscale_report import render
from deployments.plan_messages import (
    DECISIONS_PATH,
    DEFAULT_DECISIONS,
    WEIGHTS_PATH,
    Decided,
    NodeStanding,
)

HELP = "the last decisions of a running cluster's autoscaler, and why"
BAD_INPUT = 1
TIMEOUT_S = 10.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", metavar="NAME", help="only this one")
    parser.add_argument(
        "--last", type=int, default=DEFAULT_DECISIONS, metavar="N",
        help="decisions per model, at most",
    )  # fmt: skip
    parser.add_argument(
        "--url", default="http://127.0.0.1:8000", help="where the gateway is served"
    )
    parser.add_argument("--key", help="an admin key, where keys are configured")


def run(args: argparse.Namespace) -> int:
    if args.last < 1:
        print(f"--last is {args.last}: take 1 or more", file=sys.stderr)
        return BAD_INPUT
    try:
        base = _find(args.url.rstrip("/"), args.key)
        decided = msgspec.json.decode(
            _get(f"{base}{DECISIONS_PATH}?last={args.last}", None), type=dict[str, list[Decided]]
        )
        standings = msgspec.json.decode(
            _get(f"{base}{WEIGHTS_PATH}", None), type=dict[str, list[NodeStanding]]
        )
    except (OSError, LookupError, ValueError) as error:
        print(error, file=sys.stderr)
        return BAD_INPUT
    if args.model is not None and args.model not in decided:
        known = ", ".join(decided) or "none"
        print(f"no plan has a model {args.model!r}; there is: {known}", file=sys.stderr)
        return BAD_INPUT
    chosen = decided if args.model is None else {args.model: decided[args.model]}
    print(render(chosen, standings))
    return 0


def _find(url: str, key: str | None) -> str:
    """The autoscaler's own address."""
    for group in json.loads(_get(f"{url}/metrics/targets", key)):
        if group["labels"]["role"] == "autoscaler":
            return f"http://{group['targets'][0]}"
    raise LookupError(f"the gateway at {url} has no autoscaler: set autoscaler: true in its args")


def _get(url: str, key: str | None) -> bytes:
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"{url} is no address: begin with http:// or https://")
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    request = urllib.request.Request(url, headers=headers)  # noqa: S310  checked above
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:  # noqa: S310
            body: bytes = response.read()
    except HTTPError as error:
        hint = ": give an admin key by --key" if error.code in (401, 403) else ""
        raise ConnectionError(f"{url} answers {error.code}{hint}") from error
    except OSError as error:
        raise ConnectionError(f"{url} does not answer: {error}") from error
    return body
