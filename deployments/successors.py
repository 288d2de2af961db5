"""Whether a replica that leaves has another one to hand its requests to."""

import asyncio
import logging

from ray import serve

logger = logging.getLogger("ray.serve")

ASK_TIMEOUT_S = 5.0
_RUNNING = "RUNNING"


async def has_successor(application: str, deployment: str) -> bool:
    """Another replica of the deployment runs, by what Serve says now. When all of an application
    stops, none does: all of them leave at once. If Serve doesn't answer, nobody knows of one.
    """
    try:
        async with asyncio.timeout(ASK_TIMEOUT_S):
            status = await asyncio.to_thread(serve.status)
        states = status.applications[application].deployments[deployment].replica_states
        return any(str(state) == _RUNNING and number > 0 for state, number in states.items())
    except Exception as error:
        logger.warning(
            "running requests are finished here, as no other replica is known: %r", error
        )
        return False
