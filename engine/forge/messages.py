"""What a front and the forge say to each other, one message a packet; one connection per rank.

    front: Hello    forge: Welcome, or Refusal
    front: Fork with descriptors    forge: Forked with the child's pidfd, or Refusal
                                    forge: Ended

Descriptors go only to a forge that just answered: in the queue of one that hangs they would keep
pipes open. A front whose connection closes wants its rank killed.
"""

import msgspec

MAX_MESSAGE_BYTES = 192 * 1024
"""An environment is some kilobytes; Linux takes packets of about 200."""
MAX_DESCRIPTORS = 128
"""Standard output and error, the pipe to the front and links to 63 other ranks."""


class Hello(msgspec.Struct, frozen=True, array_like=True, tag="hello"):
    """Opens a connection."""

    code: str
    """Of the front, see ``engine.forge.code``."""


class Welcome(msgspec.Struct, frozen=True, array_like=True, tag="welcome"):
    """The forge runs the same code, and forks."""


class Refusal(msgspec.Struct, frozen=True, array_like=True, tag="refusal"):
    """The rank has to be started in another way."""

    reason: str


class Fork(msgspec.Struct, frozen=True, array_like=True, tag="fork"):
    """Comes with descriptors: standard output, standard error, the pipe to the front, links."""

    arguments: list[str]
    """Of ``engine.rank``, but for descriptors."""
    environment: dict[bytes, bytes]
    """All of the front's."""


class Forked(msgspec.Struct, frozen=True, array_like=True, tag="forked"):
    """Comes with the pidfd."""

    pid: int


class Ended(msgspec.Struct, frozen=True, array_like=True, tag="ended"):
    """The rank is gone, and so is its process id."""

    exit_code: int
    """Negative: the signal that killed it."""


FromFront = Hello | Fork
FromForge = Welcome | Refusal | Forked | Ended
