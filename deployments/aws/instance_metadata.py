"""The metadata service of the EC2 instance this runs on, version 2: a token first, then questions.

Straight to the address: no proxy of the environment, no redirect. Knows no notice.
"""

import http.client
from urllib.parse import urlsplit

_ASK_TIMEOUT_S = 2.0
"""The service is on the same host; a node about to go has no time for more."""
_TOKEN_LIFE_S = 21_600
_MAX_ANSWER_BYTES = 64 << 10


class MetadataAway(Exception):
    """The service can't be reached, or doesn't answer as it should: ask again later."""


class InstanceMetadata:
    """Not thread-safe: a token is kept between questions, and renewed when it isn't taken."""

    def __init__(self, url: str) -> None:
        """Raises ``ValueError`` for what isn't an address."""
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError(
                f"{url!r} is no address of a metadata service: write it as http://169.254.169.254"
            )
        self._host, self._port = parts.hostname, parts.port
        self._prefix = parts.path.rstrip("/")
        self._token: str | None = None

    def read(self, path: str) -> str | None:
        """What stands at ``path`` below ``latest/meta-data``; None where nothing does.

        Raises `MetadataAway`.
        """
        for _ in range(2):
            if self._token is None:
                self._token = self._fetch_token()
            headers = {"X-aws-ec2-metadata-token": self._token}
            status, text = self._ask("GET", f"meta-data/{path}", headers)
            if status == http.HTTPStatus.OK:
                return text
            if status == http.HTTPStatus.NOT_FOUND:
                return None
            self._token = None
            if status != http.HTTPStatus.UNAUTHORIZED:
                break
        raise MetadataAway(f"the metadata service answers {path} with status {status}")

    def _fetch_token(self) -> str:
        headers = {"X-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_LIFE_S)}
        status, text = self._ask("PUT", "api/token", headers)
        if status != http.HTTPStatus.OK or not text.isascii() or not text.isprintable():
            raise MetadataAway(f"the metadata service gives no token: status {status}")
        return text

    def _ask(self, method: str, path: str, headers: dict[str, str]) -> tuple[int, str]:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=_ASK_TIMEOUT_S)
        try:
            connection.request(method, f"{self._prefix}/latest/{path}", headers=headers)
            response = connection.getresponse()
            text = response.read(_MAX_ANSWER_BYTES).decode("utf-8", "replace")
        except (OSError, ValueError, http.client.HTTPException) as error:
            words = " ".join(str(error).split()) or type(error).__name__
            raise MetadataAway(f"the metadata service can't be reached: {words}") from error
        finally:
            connection.close()
        return response.status, text
