from pathlib import Path

import pytest

from cache_tiers.rung import Rung
from cache_tiers.weights.host_memory import HostMemory
from cache_tiers.weights.messages import WeightFile, WeightsOrder
from engine.checkpoints.manifest import FileEntry, Manifest
from engine.weights.staged_models import StagedModels
from tests.unit.engine.weights.parts import fill

CONTENTS = {"model.safetensors": b"weights", "compiled-step-ab-g12.so": b"code"}


@pytest.mark.parametrize("trusts_libraries", [True, False])
def test_code_that_came_with_a_model_is_loaded_only_where_it_is_trusted(
    tmp_path: Path, *, trusts_libraries: bool
) -> None:
    memory = HostMemory(1 << 20, available_bytes=lambda: 1 << 30)
    staged = StagedModels(
        tmp_path / "weights", memory, home=tmp_path, trusts_libraries=trusts_libraries
    )
    files = memory.make_files([WeightFile(name, len(each)) for name, each in CONTENTS.items()])
    for file, content in zip(files, CONTENTS.values(), strict=True):
        fill(file, content)
    entries = {name: FileEntry(len(each), "aa") for name, each in CONTENTS.items()}
    manifest = Manifest("source", "55", "", entries, "a" * 64, 1)
    order = WeightsOrder("model", "source", Rung.STAGED)
    staged.put(order, files, manifest=manifest, encoded=b"{}", stamp="stamp")

    placed = [path.name for path in (tmp_path / "models" / ".compiled").iterdir()]
    assert placed == (["step-ab-g12.so"] if trusts_libraries else [])
