"""Makes room in a node's memory for a model, by what others can do without.

Must not know how models come or go otherwise.
"""

from collections.abc import Callable, Mapping, Sequence

from cache_tiers.weights.arriving_file import ArrivingFile
from cache_tiers.weights.errors import NoRoom
from cache_tiers.weights.host_memory import HostMemory
from cache_tiers.weights.messages import WeightFile
from engine.weights.model_on_node import ModelOnNode
from engine.weights.staged_models import StagedModels
from engine.weights.weights_counts import WeightsCounts


class MemoryRoom:
    """Decides who leaves; on one event loop."""

    def __init__(
        self,
        memory: HostMemory,
        staged: StagedModels,
        models: Mapping[str, ModelOnNode],
        counts: WeightsCounts,
        clock: Callable[[], float],
    ) -> None:
        self._memory = memory
        self._staged = staged
        self._models = models
        self._counts = counts
        self._clock = clock

    def make(self, model: ModelOnNode, files: Sequence[WeightFile]) -> list[ArrivingFile]:
        """Raises `NoRoom`, before anything leaves in vain.

        What ranks could make anew leaves first, then models that nobody wants in memory or that
        were ordered long ago, and for one that a replica waits for also those that are merely
        ordered: those wanted on the lowest rung first, and of these the longest unused.
        """
        try:
            return self._memory.make_files(files)
        except NoRoom:
            victims = self._victims(model)
            lacking_bytes = sum(file.num_bytes for file in files) - self._memory.free_bytes
            if lacking_bytes > self._yielded_bytes(victims):
                raise
        for extra in self._staged.all:
            self._staged.drop_extras(extra)
        while True:
            try:
                return self._memory.make_files(files)
            except NoRoom:
                if not victims:
                    raise
                self._staged.drop(victims.pop(0).evict().folder)
                self._counts.num_evicted += 1

    def _victims(self, wanting: ModelOnNode) -> list[ModelOnNode]:
        now_s, for_a_start = self._clock(), wanting.is_awaited
        victims = [
            model
            for model in self._models.values()
            if model is not wanting and model.can_be_evicted(now_s, for_a_start=for_a_start)
        ]
        return sorted(victims, key=lambda model: (model.wanted, model.used_s))

    def _yielded_bytes(self, victims: Sequence[ModelOnNode]) -> int:
        """By the victims, and by what ranks could make anew."""
        leaving = {model.in_memory.folder for model in victims if model.in_memory is not None}
        return sum(
            _size(each.files if each.copy.folder in leaving else self._staged.extras(each))
            for each in self._staged.all
        )


def _size(files: Sequence[ArrivingFile]) -> int:
    return sum(file.file.num_bytes for file in files)
