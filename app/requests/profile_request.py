"""The body of ``POST /debug/profile``."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from app.requests.border import Border, unsupported, validated
from engine.profile import DEFAULT_TIMEOUT_S, MAX_STEPS, MAX_TIMEOUT_S


class ProfileRequest(Border):
    """Operators write it by hand: what is not known is refused."""

    model_config = ConfigDict(extra="forbid")

    model: str
    engine: str | None = None
    """Its id; without, the one that runs most."""
    steps: Annotated[int, Field(ge=1, le=MAX_STEPS)] = 100
    timeout_s: Annotated[float, Field(gt=0, le=MAX_TIMEOUT_S)] = DEFAULT_TIMEOUT_S
    """For all steps to come."""
    rank: int = 0


def parse_profile_request(body: Mapping[str, Any]) -> ProfileRequest:
    """Raises ``InvalidRequestError`` with the first offending field as its ``param``."""
    request = validated(ProfileRequest, body)
    if request.rank != 0:
        raise unsupported(
            "rank",
            "only rank 0 is recorded, which is enough: the others run the same steps, and what it "
            "waits for them shows as collectives",
        )
    return request
