"""The smallest Serve application: what Ray Serve itself costs."""

from ray import serve
from starlette.requests import Request


class Echo:
    """Answers any request."""

    async def __call__(self, request: Request) -> str:
        return request.url.path


app = serve.deployment(Echo).bind()
