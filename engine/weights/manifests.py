"""What the node reads from a model's manifest (headwater.json) on its way between places."""

import hashlib
from collections.abc import Mapping, Sequence

import msgspec

from cache_tiers.weights.arriving_file import ArrivingFile
from cache_tiers.weights.errors import OriginFailed, WrongWeights
from cache_tiers.weights.messages import WeightsOrder
from engine.checkpoints.manifest import Manifest, sha256_of_listing


def decode_manifest(content: bytes) -> Manifest:
    """Raises `OriginFailed` for anything else, or one that contradicts itself."""
    try:
        manifest = msgspec.json.decode(content, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise OriginFailed(f"it sent what is no manifest ({error})") from error
    weights = {n: f.sha256 for n, f in manifest.files.items() if n.endswith(".safetensors")}
    if not weights or sha256_of_listing(weights) != manifest.weights_sha256:
        raise OriginFailed("its manifest's weights_sha256 isn't that of its files")
    return manifest


def check_pins(manifest: Manifest, order: WeightsOrder) -> None:
    """Raises `WrongWeights`."""
    pins = (
        ("source_sha256", order.source_sha256, manifest.source_sha256),
        ("weights_sha256", order.weights_sha256, manifest.weights_sha256),
    )
    for name, pinned, actual in pins:
        if pinned is not None and pinned.lower() != actual:
            raise WrongWeights(
                f"{order.source} has {name} {actual}, but {pinned} is pinned: correct the pin, or "
                "the source"
            )


def check_digests(
    manifest: Manifest, files: Sequence[ArrivingFile], digests: Mapping[str, str]
) -> None:
    """That all of the manifest's files are there, and each one is what it, or whoever sent it,
    says. Raises `OriginFailed`."""
    for name in manifest.files:
        if name not in digests:
            raise OriginFailed(f"{name} is missing")
    for file in files:
        name, digest = file.file.name, digests[file.file.name]
        entry = manifest.all_files.get(name)
        expected = file.file.sha256 if entry is None else entry.sha256
        if expected is None or not (entry or is_packed(name)):
            raise OriginFailed(f"{name} is none of its manifest's files")
        if digest != expected:
            raise OriginFailed(f"{name} has sha256 {digest} instead of {expected}")
        file.file = msgspec.structs.replace(file.file, sha256=digest)


def is_packed(name: str) -> bool:
    """Weights that a rank has packed for those to come."""
    return name.startswith("packed-") and name.endswith(".weights")


def stamp_of(manifest: Manifest) -> str:
    """The same for all nodes that hold the same files."""
    listing = sha256_of_listing({n: f.sha256 for n, f in manifest.files.items()} | {"": ""})
    return f"whole {listing}"


def stamp_of_coming(order: WeightsOrder, files: Sequence[ArrivingFile]) -> str:
    """Of files whose hashes nobody knows yet. Two that share it without being the same do no harm
    but to time: the hash of the whole file is checked."""
    listing = sorted((f.file.name, f.file.num_bytes, f.file.sha256 or "") for f in files)
    return "coming " + hashlib.sha256(repr((order.source, listing)).encode()).hexdigest()
