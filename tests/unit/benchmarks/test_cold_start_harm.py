import time

from benchmarks.cold_start_harm import Harm


def passed_on(harm: Harm, content: bytes) -> tuple[bytes, bool]:
    piece = bytearray(content)
    is_end = harm.pass_on(piece)
    return bytes(piece), is_end


def test_nothing_happens_until_it_begins_and_after_it_stops() -> None:
    harm = Harm()
    assert passed_on(harm, b"abcd") == (b"abcd", False)
    harm.begin("flip")
    harm.stop()
    assert passed_on(harm, b"abcd") == (b"abcd", False)
    assert not harm.refuses()
    assert harm.num_done == 0


def test_one_bit_is_flipped_once_where_it_was_said() -> None:
    harm = Harm()
    harm.begin("flip", after_bytes=6)
    assert passed_on(harm, b"abcd") == (b"abcd", False)
    harmed, _ = passed_on(harm, b"abcd")
    assert sum((a ^ b).bit_count() for a, b in zip(harmed, b"abcd", strict=True)) == 1
    assert passed_on(harm, b"abcd") == (b"abcd", False)
    assert harm.num_done == 1


def test_a_cut_ends_the_connection_in_the_middle() -> None:
    harm = Harm()
    harm.begin("cut")
    assert passed_on(harm, b"abcd") == (b"ab", True)


def test_so_many_requests_are_refused_as_was_said() -> None:
    harm = Harm()
    harm.begin("refuse", num=3)
    assert [harm.refuses() for _ in range(5)] == [True] * 3 + [False] * 2
    assert harm.num_done == 3


def test_who_is_stalled_goes_on_after_the_time() -> None:
    harm = Harm()
    harm.begin("stall", stall_s=0.02)
    started_s = time.monotonic()
    assert passed_on(harm, b"abcd") == (b"abcd", False)
    assert time.monotonic() - started_s >= 0.02
