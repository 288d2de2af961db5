"""Two engines of one node: what one accelerator holds comes to the other by the node itself."""

import asyncio
import tempfile
from pathlib import Path

import pytest

from cache_tiers.config import NodeCacheConfig
from cache_tiers.keys import BlockKey
from cache_tiers.messages import Export, Exported, Fetched
from cache_tiers.node_cache import NodeCache
from cache_tiers.tier import TierKind
from tests.integration.node_engines import NodeEngine, content, node_engine, random_keys
from tests.unit.cache_tiers.fake_image_store import LAYOUT

pytestmark = [pytest.mark.integration, pytest.mark.timeout(30)]


async def answer_export(engine: NodeEngine, held: list[BlockKey]) -> None:
    asked = await engine.receive(Export)
    engine.store([key for key in held if key in asked.keys])
    engine.send(Exported(asked.export_id))


async def test_a_neighbour_is_asked_through_the_nodes_own_address() -> None:
    with tempfile.TemporaryDirectory(prefix="hw-") as folder:
        path = Path(folder) / "node.sock"
        config = NodeCacheConfig(host_bytes=32 * 1024**2)
        cache = NodeCache(
            config, socket_path=path, host="127.0.0.1", secret=b"the secret of this node"
        )
        own_address = await cache.start()
        keys = random_keys(4)
        async with node_engine(path, LAYOUT) as holder, node_engine(path, LAYOUT) as asker:
            await holder.wait_for_slots(len(keys))
            asker.fetch(keys, peer=own_address)
            await asyncio.gather(answer_export(holder, keys), answer_export(asker, []))

            fetched = await asker.receive(Fetched)

            assert [image.key for image in fetched.images] == keys
            assert {image.kind for image in fetched.images} == {TierKind.HOST}, "nothing was sent"
            for found in fetched.images:
                image = asker.image(found.offset, BlockKey(found.key))
                expected = content(BlockKey(found.key), 0, LAYOUT.shard_bytes)
                assert bytes(image.shard(0)) == expected
        await cache.close()
