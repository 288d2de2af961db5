"""What `headwater models warm` shows of nodes."""

import msgspec
import pytest

from cache_tiers.rung import Rung
from cache_tiers.weights.messages import Stage, WeightsState
from deployments.fitting_nodes import FittingNode
from deployments.warm_report import WarmBars, describe, explain
from deployments.weight_warming import Warmed

NODE = FittingNode("0123456789abcdef", "10.0.0.7")
STATE = WeightsState(
    "m",
    Rung.STAGED,
    Rung.STAGED,
    num_bytes=2 * 10**9,
    origin="peer",
    stages=(Stage("peer", 0.5, 2 * 10**9), Stage("hash to the end", 0.25)),
    start_stages=(Stage("process", 0.1), Stage("weights", 0.2)),
)


@pytest.mark.parametrize(
    ("state", "line"),
    [
        (STATE, "m is in memory (2,000 MB, from another node) after 1.5 s"),
        (
            msgspec.structs.replace(STATE, rung=Rung.ON_DISK, origin="source"),
            "m is on disk (2,000 MB, from its source) after 1.5 s",
        ),
        (msgspec.structs.replace(STATE, rung=Rung.COLD), "m is gone"),
    ],
)
def test_a_node_has_one_line(state: WeightsState, line: str) -> None:
    assert describe(Warmed(NODE, 1.5, state)) == f"10.0.0.7 (01234567): {line}"


def test_a_node_that_failed_says_why() -> None:
    assert describe(Warmed(NODE, 1.5, STATE, "no room: raise host_bytes")) == (
        "10.0.0.7 (01234567): no room: raise host_bytes"
    )
    assert describe(Warmed(NODE, 1.5, failure="it is gone")) == "10.0.0.7 (01234567): it is gone"


def test_stages_come_with_bytes_rates_and_their_sum() -> None:
    assert list(explain(Warmed(NODE, 1.5, STATE))) == [
        "10.0.0.7 (01234567): last promotion, from another node",
        "  stage                   s          MB     GB/s",
        "  peer                 0.50     2,000.0     4.00",
        "  hash to the end      0.25",
        "  in all               0.75",
        "10.0.0.7 (01234567): last start of a replica",
        "  stage           s          MB     GB/s",
        "  process      0.10",
        "  weights      0.20",
        "  in all       0.30",
    ]


def test_what_never_happened_has_no_table() -> None:
    new = WeightsState("m", Rung.ON_DISK, Rung.ON_DISK)
    assert list(explain(Warmed(NODE, 1.5, new))) == [
        "10.0.0.7 (01234567): last promotion",
        "  none yet",
        "10.0.0.7 (01234567): last start of a replica",
        "  none yet",
    ]
    assert list(explain(Warmed(NODE, 1.5, failure="it is gone"))) == []


def test_bars_follow_each_node_of_each_model() -> None:
    coming = WeightsState("m", Rung.COLD, Rung.STAGED, num_bytes=80, num_done_bytes=20)
    other = msgspec.structs.replace(coming, model="other", num_done_bytes=40)
    with WarmBars() as bars:
        bars.show(NODE, coming)
        bars.show(NODE, other)
        assert bars.positions == {("m", NODE.node_id): 20, ("other", NODE.node_id): 40}
        bars.show(NODE, STATE)
        assert bars.positions["m", NODE.node_id] == STATE.num_bytes
