"""Everything a client can be told went wrong, in the shape of OpenAI's error object.

The one exception tree of this package. Must not know HTTP frameworks: ``app.middleware`` turns an
``ApiError`` into a response, ``app.answers.sse`` into the last event of a stream that already
began.
"""

import math
import random

import orjson


class ApiError(Exception):
    """An answer with an error status; its message is for the client and says what to change."""

    status = 500
    type = "server_error"
    default_code: str | None = None

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code or self.default_code
        self.headers = headers or {}

    def body(self, request_id: str) -> bytes:
        """The JSON of the error; ``request_id`` is the server-made one, as in the log."""
        error = {
            "message": self.message,
            "type": self.type,
            "param": self.param,
            "code": self.code,
            "request_id": request_id,
        }
        return orjson.dumps({"error": error})


class InvalidRequestError(ApiError):
    """The request is malformed or asks for what is not supported; sending it again cannot help."""

    status = 400
    type = "invalid_request_error"


class ContextLengthError(InvalidRequestError):
    """Prompt and answer cannot fit, however long the client waits."""

    default_code = "context_length_exceeded"

    def __init__(self, message: str, *, param: str) -> None:
        super().__init__(message, param=param, headers={"x-should-retry": "false"})


class AuthenticationError(ApiError):
    """No API key, or one that is not known."""

    status = 401
    type = "authentication_error"
    default_code = "invalid_api_key"

    def __init__(self, message: str) -> None:
        super().__init__(message, headers={"www-authenticate": "Bearer"})


class PermissionDeniedError(ApiError):
    """The API key is known, but not good for this."""

    status = 403
    type = "permission_error"
    default_code = "admin_key_required"


class NotFoundError(ApiError):
    """No such path or model."""

    status = 404
    type = "invalid_request_error"


class ModelNotFoundError(NotFoundError):
    """The model is not served here."""

    default_code = "model_not_found"

    def __init__(self, model: str) -> None:
        super().__init__(
            f"The model `{model[:200]}` does not exist or you do not have access to it."
        )


class MethodNotAllowedError(ApiError):
    """The path exists, for other methods."""

    status = 405
    type = "invalid_request_error"
    default_code = "method_not_allowed"


class ConflictError(ApiError):
    """Something that excludes this is under way; worth another try when it is over."""

    status = 409
    type = "conflict_error"
    default_code = "busy"


class BodyTooLargeError(ApiError):
    """The body is over the configured limit."""

    status = 413
    type = "request_too_large"

    def __init__(self, max_body_bytes: int) -> None:
        super().__init__(f"The request body is larger than the limit of {max_body_bytes} bytes.")


class BodyTimeoutError(ApiError):
    """The client did not send its body in time."""

    status = 408
    type = "timeout_error"
    default_code = "request_timeout"

    def __init__(self, timeout_s: float) -> None:
        super().__init__(f"The request body did not arrive within {timeout_s:g} seconds.")


class HeadersTooLargeError(ApiError):
    """More headers, or longer ones, than any honest client sends."""

    status = 431
    type = "invalid_request_error"
    default_code = "headers_too_large"

    def __init__(self, max_headers: int, max_bytes: int) -> None:
        super().__init__(
            f"The request's headers must be at most {max_headers} and hold at most {max_bytes} "
            "bytes."
        )


MIN_RETRY_S, MAX_RETRY_S = 1, 120
"""Bounds of ``retry-after``: OpenAI's client doesn't try again at all if told to wait longer."""


def retry_after_s(estimated_s: float) -> int:
    """Clients come back after the estimated wait, not all at once."""
    spread = random.uniform(0.75, 1.25)  # noqa: S311 - not a secret
    return max(MIN_RETRY_S, min(MAX_RETRY_S, math.ceil(estimated_s * spread)))


class OverloadedError(ApiError):
    """No capacity now; worth another try after ``retry_after_s``."""

    status = 503
    type = "service_unavailable_error"
    default_code = "server_is_overloaded"

    def __init__(self, message: str, *, code: str | None = None, retry_after_s: int = 1) -> None:
        headers = {
            "retry-after": str(retry_after_s),
            "retry-after-ms": str(1000 * retry_after_s),
        }
        super().__init__(message, code=code, headers=headers)


class ModelLoadingError(OverloadedError):
    """The model is configured, but no replica of it is ready."""

    default_code = "model_loading"

    def __init__(
        self, model: str, estimated_s: float | None = None, *, is_waking: bool = False
    ) -> None:
        """``estimated_s``: until it is; None if nothing tells. ``is_waking``: replicas sleep."""
        when = "shortly" if estimated_s is None else f"in about {estimated_s:.0f} s"
        super().__init__(
            f"The model `{model}` has no replica that is ready: it is "
            f"{'waking up' if is_waking else 'loading'}. Try again {when}.",
            retry_after_s=5 if estimated_s is None else retry_after_s(estimated_s),
        )


class WeightsReplacedError(OverloadedError):
    """The prompt was made for weights that no replica has any more; sent again, it is made anew."""

    default_code = "model_replaced"

    def __init__(self, model: str) -> None:
        super().__init__(
            f"The model `{model}` was replaced by another version. Send the request again."
        )


class RequestTimeoutError(ApiError):
    """A time limit of the server ran out."""

    status = 504
    type = "timeout_error"
    default_code = "timeout"


class EngineError(ApiError):
    """The engine failed, or was lost, and other replicas could not take over."""

    default_code = "engine_error"
