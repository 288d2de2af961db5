"""What a replica that goes to sleep asks of its runner: the memory of the KV pool back."""

from typing import Protocol

from engine.step import ModelRunner


class KvMemory(Protocol):
    """Of all ranks together, or of one. Owner: the step loop; between steps only."""

    def free_kv(self) -> None:
        """Give the pool's memory back, if it is there. Precondition: nobody holds a slot or a
        block. No plan that computes or moves KV comes before ``allocate_kv``.
        """
        ...

    def allocate_kv(self) -> None:
        """Have the memory again, with nothing of use in it.

        Raises ``KvMemoryError`` when there is not enough: nothing is held then, and it may be
        called again.
        """
        ...


class ReplicaRunner(ModelRunner, KvMemory, Protocol):
    """A runner that can sleep."""
