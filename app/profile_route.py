"""``POST /debug/profile``: where the steps of an engine spend their time, from now on."""

import base64
import logging

import msgspec
import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.client import AskedTooOftenError
from app.errors import (
    ConflictError,
    EngineError,
    ModelLoadingError,
    NotFoundError,
    OverloadedError,
    RequestTimeoutError,
)
from app.gateway import Gateway
from app.member import Member
from app.record import record_of
from app.requests.body import parse_json_object, read_body
from app.requests.profile_request import ProfileRequest, parse_profile_request
from engine.profile import (
    Profile,
    ProfileAnswer,
    ProfileOrder,
    ProfileRefused,
    render_profile,
)
from wire.errors import ConnectionClosed

logger = logging.getLogger(__name__)

GRACE_S = 30.0
"""After the time for the steps: what was recorded is worked up, and the last step ends."""

_decoder = msgspec.msgpack.Decoder(ProfileAnswer)


class ProfileRoute:
    """An ASGI application. The middleware has asked for an admin key where keys are configured."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        record_of(scope).route = "/debug/profile"
        body = await read_body(scope, receive, self._gateway.config.max_body_bytes)
        request = parse_profile_request(parse_json_object(body))
        member = self._choose(request)
        profile = await _record(member, request)
        content = orjson.dumps(
            {
                "object": "profile",
                "model": member.client.card.model,
                "engine": member.engine_id,
                "rank": 0,
                "summary": msgspec.to_builtins(profile.summary),
                "table": render_profile(profile.summary),
                "trace_gzip_base64": None
                if profile.trace is None
                else base64.b64encode(profile.trace).decode(),
            }
        )
        await Response(content, media_type="application/json")(scope, receive, send)

    def _choose(self, request: ProfileRequest) -> Member:
        members = list(self._gateway.dispatcher_of(request.model).fleet)
        if not members:
            raise ModelLoadingError(request.model)
        if request.engine is None:
            return max(members, key=lambda member: member.client.load.num_running)
        for member in members:
            if member.engine_id == request.engine:
                return member
        raise NotFoundError(
            f"No engine `{request.engine[:200]}` of `{request.model[:200]}` is connected here."
        )


async def _record(member: Member, request: ProfileRequest) -> Profile:
    order = ProfileOrder(request.steps, request.timeout_s)
    argument = msgspec.json.encode(order).decode()
    try:
        payload = await member.client.query(
            "profile", argument, timeout_s=request.timeout_s + GRACE_S
        )
        answer = _decoder.decode(payload or b"")
    except AskedTooOftenError:
        raise OverloadedError("The engine was asked too often. Try again in a moment.") from None
    except TimeoutError:
        raise RequestTimeoutError(
            f"The engine did not answer within {request.timeout_s + GRACE_S:g} seconds."
        ) from None
    except ConnectionClosed as closed:
        raise EngineError(f"The connection to the engine was lost: {closed.reason}.") from closed
    except msgspec.DecodeError as error:
        logger.warning("engine %s sent no profile: %s", member.engine_id, error)
        raise EngineError("The engine sent something else than a profile.") from error
    if isinstance(answer, ProfileRefused):
        raise ConflictError("This engine is recording already: one profile at a time.")
    return answer
