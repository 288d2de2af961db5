"""One TCP connection between two node caches: small frames, then bytes without a copy.

Frames are awaited on the event loop. Images and chunks go straight between their memory and the
kernel in a thread of their own, by blocking calls that release the interpreter: neither the loop
nor other streams wait for them, and a whole image costs one system call. Such a thread is stopped
by shutting the socket down, which is how deadlines and cancellations reach it at once. Must not
know what is asked for.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from typing import Self, TypeVar

from cache_tiers.block_image import BlockImage
from cache_tiers.messages import PeerAddress
from cache_tiers.peer.messages import MAX_FRAME_BYTES, PeerClosed, PeerFailed
from wire.errors import HandshakeError, WireError
from wire.frames import HEADER_BYTES, encode_frame
from wire.handshake import MAX_HANDSHAKE_FRAME_BYTES, Handshake, Role, refusal

_MAX_BUFFERS = 1024
"""Of one ``sendmsg``: the kernel's limit."""
_Result = TypeVar("_Result")


class Stream:
    """Owner: whoever made it closes it. One caller at a time; after an exception, cancellation
    included, only ``close`` may follow: nobody knows where in an answer the connection stands.
    """

    def __init__(self, sock: socket.socket, executor: Executor) -> None:
        """``executor`` has a thread to spare for each of its streams."""
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = sock
        self._executor = executor
        self._loop = asyncio.get_running_loop()

    @classmethod
    def to(cls, address: PeerAddress, executor: Executor) -> Self:
        """Not connected yet: ``dial`` does that. Raises ``PeerFailed``."""
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        try:
            return cls(socket.socket(family, socket.SOCK_STREAM), executor)
        except OSError as error:  # too many open files
            raise PeerFailed(f"cannot connect: {error}") from error

    async def dial(self, address: PeerAddress, timeout_s: float) -> None:
        """Connect and shake hands as a client. Raises ``PeerFailed``."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.connect(address.host, address.port)
                await self.shake_hands(Handshake(Role.CLIENT, address.secret))
        except TimeoutError as error:
            raise PeerFailed(f"it did not answer within {timeout_s:g} s") from error

    async def connect(self, host: str, port: int) -> None:
        """Raises ``PeerFailed``."""
        try:
            await self._loop.sock_connect(self._socket, (host, port))
        except (OSError, ValueError, OverflowError) as error:  # the latter: such an address is none
            raise PeerFailed(f"cannot connect: {error}") from error

    async def shake_hands(self, handshake: Handshake) -> None:
        """Raises ``PeerFailed``, after having told the peer why."""
        await self.send_frame(handshake.hello())
        while not handshake.is_done:
            frame = await self.receive_frame(MAX_HANDSHAKE_FRAME_BYTES)
            try:
                answer = handshake.receive(frame)
            except HandshakeError as error:
                with contextlib.suppress(PeerFailed):
                    await self.send_frame(refusal(error))
                raise PeerFailed(str(error)) from error
            if answer is not None:
                await self.send_frame(answer)

    async def send_frame(self, payload: bytes) -> None:
        """Raises ``PeerFailed``."""
        with _failures():
            await self._loop.sock_sendall(self._socket, encode_frame(payload))

    async def receive_frame(self, max_bytes: int = MAX_FRAME_BYTES) -> bytes:
        """The next one, and nothing of what follows it. Raises ``PeerFailed``."""
        header = await self._receive(HEADER_BYTES)
        num_bytes = int.from_bytes(header, "little")
        if num_bytes > max_bytes:
            raise PeerFailed(f"it announced a frame of {num_bytes} bytes, the limit is {max_bytes}")
        return await self._receive(num_bytes)

    async def send_images(self, payload: bytes, images: Sequence[BlockImage]) -> None:
        """A frame, and the images behind it. Their memory is free again when this returns or
        raises. Raises ``PeerFailed``.
        """
        buffers = [memoryview(encode_frame(payload)), *(image.memory for image in images)]
        await self.in_thread(lambda sock: _send_all(sock, buffers))

    async def receive_images(
        self, images: Sequence[BlockImage], on_image: Callable[[int, bool], None]
    ) -> None:
        """Fill the memory of ``images``, one after the other; ``on_image`` gets the index of each
        that is in and whether it is sound, in a thread. Nothing is written any more when this
        returns or raises. Raises ``PeerFailed``.
        """
        await self.in_thread(lambda sock: _receive_all(sock, images, on_image))

    async def in_thread(self, function: Callable[[socket.socket], _Result]) -> _Result:
        """Run a function that blocks on the socket, between two frames; however this ends, the
        function has ended. Raises ``PeerFailed``.
        """
        self._socket.setblocking(True)
        try:
            future = self._loop.run_in_executor(self._executor, function, self._socket)
        except RuntimeError as error:  # shut down, while what the peer said was still in a buffer
            raise PeerFailed("this side has closed") from error
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError:
            self.interrupt()
            while not future.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([future])
            future.exception()  # marks it as seen
            raise
        self._socket.setblocking(False)
        with _failures():
            return future.result()

    def is_usable(self) -> bool:
        """Whether an idle connection still stands: the peer neither closed it nor said a word."""
        try:
            self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def interrupt(self) -> None:
        """End what goes on in the connection; its caller gets ``PeerFailed``."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()

    async def _receive(self, num_bytes: int) -> bytes:
        buffer = bytearray(num_bytes)
        rest = memoryview(buffer)
        while rest:
            with _failures():
                num_received = await self._loop.sock_recv_into(self._socket, rest)
            if num_received == 0:
                raise PeerClosed("it closed the connection")
            rest = rest[num_received:]
        return bytes(buffer)


@contextlib.contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except (OSError, WireError) as error:
        raise PeerFailed(f"connection lost: {error}") from error


def _send_all(sock: socket.socket, buffers: list[memoryview]) -> None:
    begin = 0
    while begin < len(buffers):
        num_sent = sock.sendmsg(buffers[begin : begin + _MAX_BUFFERS])
        while begin < len(buffers) and num_sent >= len(buffers[begin]):
            num_sent -= len(buffers[begin])
            begin += 1
        if num_sent:
            buffers[begin] = buffers[begin][num_sent:]


def _receive_all(
    sock: socket.socket, images: Sequence[BlockImage], on_image: Callable[[int, bool], None]
) -> None:
    for index, image in enumerate(images):
        rest = image.memory
        while rest:
            num_received = sock.recv_into(rest, 0, socket.MSG_WAITALL)
            if num_received == 0:
                raise PeerFailed("it closed the connection in the middle of an answer")
            rest = rest[num_received:]
        on_image(index, image.is_sound())
