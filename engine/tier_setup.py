"""Gives an engine its node's KV tiers, where the model can have them. Must not know the loop."""

import logging

from cache_tiers.messages import Open
from cache_tiers.node_client import Attachment, connect
from engine.config import EngineSpec
from engine.engine import Engine
from engine.kv_images import image_layout, supports_tiers
from engine.messages import KEY_STRIDE
from engine.model_card import model_root_key
from engine.runner import LoadedRunner
from engine.step import ModelRunner
from engine.tier_desk import TierDesk
from engine.tier_link import TierLink

logger = logging.getLogger(__name__)

_CONNECT_TIMEOUT_S = 5.0


def use_node_cache(
    engine: Engine, spec: EngineSpec, loaded: LoadedRunner, runner: ModelRunner
) -> None:
    """Connect ``engine``, whose steps ``runner`` executes, to the cache that ``spec`` names, if it
    names one. A cache that is not there is tried again later.

    Precondition: no request is here, and all ranks take plans.
    """
    socket_path = spec.node_cache_socket
    if socket_path is None:
        return
    if not supports_tiers(loaded.geometry) or not spec.config.prefix_caching:
        reason = (
            "layers behind sliding windows" if spec.config.prefix_caching else "no prefix cache"
        )
        logger.warning("%s has %s: it runs without KV tiers", spec.model, reason)
        return
    layout = image_layout(
        spec.config, loaded.geometry, model_root_key(spec.config, loaded.checkpoint)
    )
    opening = Open(layout, rank=0, model=spec.model, key_stride=KEY_STRIDE)

    def dial() -> Attachment:
        return connect(socket_path, opening, _CONNECT_TIMEOUT_S)

    def attach(arena: memoryview) -> None:
        runner.attach_arena(arena, layout, str(socket_path))

    link = TierLink(dial)
    link.connect_now()
    engine.use_tiers(
        TierDesk(
            link,
            attach,
            runner.detach_arena,
            layout,
            timeout_s=spec.load_timeout_s,
        )
    )
