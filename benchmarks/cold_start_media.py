"""What weights are brought over, used as plainly and as fast as can be: the limits of
``benchmarks.cold_start``.

Must not know what brings weights.
"""

from __future__ import annotations

import http.client
import mmap
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

REQUEST_BYTES = 8 * 1024**2
_BUFFER_BYTES = 1024**2


@dataclass(frozen=True, slots=True)
class Span:
    """Of one file, for one request."""

    file: int
    begin: int
    end: int


def spans_of(sizes: Sequence[int]) -> list[Span]:
    """All of some files in requests of ``REQUEST_BYTES``, in order."""
    return [
        Span(file, begin, min(begin + REQUEST_BYTES, size))
        for file, size in enumerate(sizes)
        for begin in range(0, size, REQUEST_BYTES)
    ]


def read_urls_s(urls: Sequence[str], sizes: Sequence[int], num_streams: int) -> float:
    """Seconds of reading all of some objects by ranges over so many connections; the bytes are
    thrown away. Raises ``OSError``."""

    def read(spans: Iterator[Span]) -> None:
        address = urlsplit(urls[0]).netloc
        connection = http.client.HTTPConnection(address, timeout=60.0)
        buffer = memoryview(bytearray(_BUFFER_BYTES))
        for span in spans:
            url = urlsplit(urls[span.file])
            headers = {"Range": f"bytes={span.begin}-{span.end - 1}"}
            connection.request("GET", f"{url.path}?{url.query}", headers=headers)
            _drain(connection.getresponse(), span, lambda _: buffer[:])
        connection.close()

    return _in_threads(read, spans_of(sizes), num_streams)


def receive_s(urls: Sequence[str], sizes: Sequence[int], num_streams: int) -> float:
    """The same, received into new memory that other processes could map."""
    with new_memory(sizes) as memories:

        def receive(spans: Iterator[Span]) -> None:
            connection = http.client.HTTPConnection(urlsplit(urls[0]).netloc, timeout=60.0)
            for span in spans:
                headers = {"Range": f"bytes={span.begin}-{span.end - 1}"}
                connection.request("GET", urlsplit(urls[span.file]).path, headers=headers)
                with memoryview(memories[span.file])[span.begin : span.end] as part:
                    _drain(connection.getresponse(), span, part.__getitem__)
            connection.close()

        return _in_threads(receive, spans_of(sizes), num_streams)


def read_direct_s(paths: Sequence[Path], num_threads: int) -> float:
    """Seconds of reading all of some files past the page cache into new memory that other processes
    could map. Raises ``OSError``, also if the file system has no direct reads."""
    sizes = [path.stat().st_size for path in paths]
    files = [os.open(path, os.O_RDONLY | os.O_DIRECT) for path in paths]
    try:
        with new_memory(sizes) as memories:

            def read(spans: Iterator[Span]) -> None:
                for span in spans:
                    # Up to the page's end: direct reads are of whole blocks.
                    end = -(-span.end // mmap.PAGESIZE) * mmap.PAGESIZE
                    with memoryview(memories[span.file])[span.begin : end] as part:
                        num_read = os.preadv(files[span.file], [part], span.begin)
                    if num_read != span.end - span.begin:
                        raise OSError(f"{paths[span.file]}: a read brought {num_read} bytes")

            return _in_threads(read, spans_of(sizes), num_threads)
    finally:
        for file in files:
            os.close(file)


@contextmanager
def new_memory(sizes: Sequence[int]) -> Iterator[list[mmap.mmap]]:
    """Shared memory without names, of each size, rounded up to pages; no page is there yet."""
    memories = []
    try:
        for size in sizes:
            file = os.memfd_create("benchmark")
            try:
                rounded = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
                os.ftruncate(file, rounded)
                memories.append(mmap.mmap(file, rounded))
            finally:
                os.close(file)
        yield memories
    finally:
        for memory in memories:
            memory.close()


def forget_pages(paths: Sequence[Path]) -> None:
    """Their next reads come from the disk."""
    for path in paths:
        file = os.open(path, os.O_RDONLY)
        try:
            os.fsync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(file)


def _drain(
    response: http.client.HTTPResponse, span: Span, place: Callable[[slice], memoryview]
) -> None:
    """``place`` says where to put what is still to come, by its place in the span."""
    left = span.end - span.begin
    length = left
    if response.status != 206:
        raise OSError(f"the store answers {response.status}: {response.read(200)!r}")
    while left:
        with place(slice(length - left, None)) as part:
            num_read = response.readinto(part[:left])
        if not num_read:
            raise OSError("the store ended an answer early")
        left -= num_read
    response.read()  # so that the connection is free again


def _in_threads(work: Callable[[Iterator[Span]], None], spans: list[Span], num: int) -> float:
    """Seconds; each thread takes the next span when it is done with one."""
    waiting: queue.SimpleQueue[Span] = queue.SimpleQueue()
    for span in spans:
        waiting.put(span)
    errors: list[Exception] = []

    def taken() -> Iterator[Span]:
        while not errors:
            try:
                yield waiting.get_nowait()
            except queue.Empty:
                return

    def run() -> None:
        try:
            work(taken())
        except (OSError, http.client.HTTPException) as error:
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(num)]
    started_s = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - started_s
    if errors:
        raise OSError(f"the medium can't be measured: {errors[0]}") from errors[0]
    return seconds
