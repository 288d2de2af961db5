"""How much memory a model takes, by its config alone: what capacity planning needs. Imports no
torch."""

from dataclasses import dataclass

from engine.models.model_config import ModelConfig


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Of weights and KV stored alike, with ``bytes_per_element`` each."""

    config: ModelConfig
    num_parameters: int
    bytes_per_element: int

    @property
    def weight_bytes(self) -> int:
        return self.num_parameters * self.bytes_per_element

    @property
    def kv_token_bytes(self) -> int:
        """Keys and values of one token in all layers, as long as no window has passed it."""
        return self.config.kv_geometry(
            block_size_tokens=1, bytes_per_element=self.bytes_per_element
        ).token_bytes

    def request_kv_bytes(self, context_tokens: int, block_size_tokens: int) -> int:
        """Whole blocks of one request of ``context_tokens``; windows bound their layers' part."""
        geometry = self.config.kv_geometry(
            block_size_tokens=block_size_tokens, bytes_per_element=self.bytes_per_element
        )
        return geometry.num_blocks_of(context_tokens) * geometry.block_bytes

    def num_requests(self, memory_bytes: int, context_tokens: int, block_size_tokens: int) -> int:
        """Requests of ``context_tokens`` whose KV fits into what the weights leave of
        ``memory_bytes``; none if not even the weights fit."""
        room = max(0, memory_bytes - self.weight_bytes)
        return room // self.request_kv_bytes(context_tokens, block_size_tokens)


def model_size(config: ModelConfig, *, dtype_bytes: int) -> ModelSize:
    """The size of ``config``'s model with weights and KV of ``dtype_bytes`` per element."""
    return ModelSize(config, config.num_parameters(), dtype_bytes)
