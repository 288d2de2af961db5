"""How many output tokens per second a gateway serves, from two looks at its metrics.

Knows neither clusters nor prices.
"""

import time
from collections.abc import Callable
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from deployments.cost.errors import MetricsUnfit

COUNTER = "headwater:tokens_total"
_MAX_BYTES = 64 * 2**20
_TIMEOUT_S = 10.0


def served_tokens_per_s(
    url: str,
    over_s: float,
    *,
    fetch: Callable[[str], str] | None = None,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> float:
    """Of the whole fleet: the page must be the fleet's. Takes ``over_s``. Raises `MetricsUnfit`."""
    read = fetch or _fetch
    first, first_s = num_output_tokens(read(url)), clock()
    sleep(over_s)
    last, last_s = num_output_tokens(read(url)), clock()
    if last < first:
        raise MetricsUnfit(f"{url} counted backwards, as after a restart: ask again")
    return (last - first) / (last_s - first_s)


def num_output_tokens(page: str) -> float:
    """Since the start. Raises `MetricsUnfit` for a page that doesn't count them."""
    try:
        samples = [
            sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
            if sample.name == COUNTER and sample.labels.get("kind") == "completion"
        ]
    except ValueError as error:
        raise MetricsUnfit(f"the metrics are no Prometheus text: {error}") from error
    if not samples:
        raise MetricsUnfit(
            f"the metrics have no {COUNTER} of completions: give --metrics the gateway's "
            "/metrics, after its first answer"
        )
    return sum(samples)


def _fetch(url: str) -> str:
    if urlsplit(url).scheme not in ("http", "https"):
        raise MetricsUnfit(f"{url} is no http:// or https:// address")
    try:
        with urlopen(url, timeout=_TIMEOUT_S) as response:  # noqa: S310  checked above
            page: bytes = response.read(_MAX_BYTES + 1)
    except (URLError, OSError, ValueError) as error:
        raise MetricsUnfit(f"{url} doesn't answer: {error}") from error
    if len(page) > _MAX_BYTES:
        raise MetricsUnfit(f"{url} sends more than {_MAX_BYTES} bytes")
    return page.decode("utf-8", errors="replace")
