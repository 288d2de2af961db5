import threading
from concurrent.futures import ThreadPoolExecutor

from hypothesis import given, settings
from hypothesis import strategies as st

from cache_tiers.object.batch import Batch, Outcome
from cache_tiers.object.bucket import BucketFailed


def test_each_item_is_worked_on_once() -> None:
    batch = Batch(100)
    seen: list[int] = []

    def work(index: int) -> Outcome:
        seen.append(index)
        return Outcome.DONE if index % 2 else Outcome.MISSING

    with ThreadPoolExecutor(4) as executor:
        for _ in range(4):
            executor.submit(batch.run, work)
    assert sorted(seen) == list(range(100))
    assert batch.outcomes == [Outcome.MISSING, Outcome.DONE] * 50


def test_after_a_failure_no_item_is_begun() -> None:
    batch = Batch(5)

    def work(index: int) -> Outcome:
        if index == 2:
            raise BucketFailed("busy")
        return Outcome.DONE

    batch.run(work)
    batch.run(work)
    assert batch.outcomes == [Outcome.DONE] * 2 + [Outcome.OPEN] * 3
    assert batch.failure == "busy"


def test_what_comes_after_the_end_does_not_count() -> None:
    batch = Batch(2)
    begun, may_end = threading.Event(), threading.Event()
    memory = bytearray(1)
    seen: list[int] = []

    def work(index: int) -> Outcome:
        seen.append(index)
        begun.set()
        may_end.wait()
        with batch.memory() as is_ours:
            if is_ours:
                memory[0] = 1
        return Outcome.DONE

    thread = threading.Thread(target=batch.run, args=(work,))
    thread.start()
    begun.wait()
    batch.close()
    batch.fail("too late to say so")
    may_end.set()
    thread.join()
    assert seen == [0]
    assert batch.outcomes == [Outcome.OPEN] * 2
    assert batch.failure is None
    assert memory == b"\0"


@settings(max_examples=30, deadline=None)
@given(num_threads=st.integers(1, 4), num_before=st.integers(0, 40), failing=st.integers(0, 60))
def test_wherever_it_is_closed_nothing_changes_from_then_on(
    num_threads: int, num_before: int, failing: int
) -> None:
    batch = Batch(40)
    memory = bytearray(40)
    num_worked = threading.Semaphore(0)

    def work(index: int) -> Outcome:
        num_worked.release()
        if index == failing:
            raise BucketFailed("busy")
        with batch.memory() as is_ours:
            if is_ours:
                memory[index] = 1
        return Outcome.DONE

    with ThreadPoolExecutor(num_threads) as executor:
        for _ in range(num_threads):
            executor.submit(batch.run, work)
        for _ in range(min(num_before, failing)):
            num_worked.acquire()
        batch.close()
        at_close = (bytes(memory), list(batch.outcomes), batch.failure)
    assert at_close == (bytes(memory), list(batch.outcomes), batch.failure)
    done = [index for index, outcome in enumerate(batch.outcomes) if outcome is Outcome.DONE]
    assert all(memory[index] for index in done)
