import msgspec
import pytest

from engine.errors import ProtocolError
from engine.messages import Query, Reply
from engine.profile import Profile, ProfileAnswer, ProfileOrder, ProfileRefused
from engine.profile_orders import ProfileOrders
from engine.profile_summary import summarize
from engine.rank_messages import Record

ORDER = ProfileOrder(3, 2.0)
PROFILE = Profile(summarize([], num_asked=3), b"trace")


def query(query_id: int, argument: bytes | None = None) -> Query:
    return Query(query_id, "profile", (argument or msgspec.json.encode(ORDER)).decode())


def test_one_gateway_at_a_time_waits_for_a_profile() -> None:
    orders = ProfileOrders()
    assert orders.take(1, query(7)) == Record(ORDER)
    refused = orders.take(2, query(8))
    assert isinstance(refused, Reply)
    assert refused.query_id == 8
    assert msgspec.msgpack.decode(refused.payload or b"", type=ProfileAnswer) == ProfileRefused()
    source, reply = orders.finished(PROFILE)
    assert (source, reply.query_id) == (1, 7)
    assert msgspec.msgpack.decode(reply.payload or b"", type=ProfileAnswer) == PROFILE
    assert orders.take(2, query(9)) == Record(ORDER)


@pytest.mark.parametrize(
    ("argument", "error"),
    [
        (b"", msgspec.DecodeError),
        (b"5", msgspec.ValidationError),
        (b'{"num_steps": 5}', msgspec.ValidationError),
        (b'{"num_steps": 0, "timeout_s": 1}', ProtocolError),
        (b'{"num_steps": 5, "timeout_s": 1e9}', ProtocolError),
    ],
)
def test_an_order_that_no_gateway_gives_is_an_error(
    argument: bytes, error: type[Exception]
) -> None:
    orders = ProfileOrders()
    with pytest.raises(error):
        orders.take(1, Query(7, "profile", argument.decode()))
    assert orders.take(1, query(8)) == Record(ORDER)
