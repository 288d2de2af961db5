"""A short fuzz run over real sockets; ``make fuzz`` is the long one."""

import pytest

from tests.fuzz.at_rest import assert_at_rest
from tests.fuzz.campaign import fuzz
from tests.fuzz.small_chain import small_chain

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(180)]


def test_whatever_is_asked_is_answered_as_documented() -> None:
    with small_chain("paced") as (chain, runner):
        report = fuzz(chain, runner, num_requests=1300)
        runner.run(assert_at_rest(chain))
    assert report.num_requests >= 1300
    assert report.num_by_status[200] > 500, "nearly everything was refused: nothing was tried"
    assert report.num_streams > 10
