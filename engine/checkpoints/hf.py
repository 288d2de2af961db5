"""A model of the Hugging Face hub: ``hf:org/name``, ``hf:org/name@revision``, or one GGUF file of
a repository, ``hf:org/name/file.gguf``.

Endpoint, token, proxies and offline mode are huggingface_hub's own business (its environment and
files), and so are its requests; only the parallel reads of parts, which it does not do, are ours.
A branch or tag is resolved to a commit once, and everything is read of that commit.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Self
from urllib.parse import urlsplit

from engine.checkpoints.downloads import Downloads
from engine.checkpoints.errors import SourceUnavailable, TransferInterrupted, UnsupportedCheckpoint
from engine.checkpoints.layout import DESCRIPTION_FILES, check_sizes, choose_files, gguf_files
from engine.checkpoints.placement import bring_model
from engine.checkpoints.remote_file import RemoteFile

_NAME = re.compile(
    r"(?P<repository>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)"
    r"(?:[:/](?P<file>[\w./ -]+\.gguf))?"
    r"(?:@(?P<revision>[\w./-]+))?"
)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_TIMEOUT_S = 30.0
_TRANSIENT_STATUS = frozenset({408, 429, 500, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class _Listing:
    """What one commit of a repository holds."""

    commit: str
    sizes_bytes: dict[str, int]
    sha256s: dict[str, str]
    """Of the files that the hub keeps in its large file storage."""


class HubSource:
    """One model of the hub, at one revision."""

    def __init__(self, repository: str, file: str | None, revision: str | None) -> None:
        self._repository = repository
        self._file = file
        self._revision = revision
        self._listing: _Listing | None = None
        self._locations: dict[str, str] = {}
        self._lock = Lock()

    @classmethod
    def parse(cls, rest: str) -> Self:
        """Read what follows ``hf:``; raises `SourceUnavailable`."""
        match = _NAME.fullmatch(rest)
        if match is None or ".." in rest:
            raise SourceUnavailable(
                f"hf:{rest} names no repository: write it as hf:org/name, hf:org/name@revision or "
                "hf:org/name/file.gguf."
            )
        return cls(match["repository"], match["file"], match["revision"])

    @property
    def uri(self) -> str:
        file = "" if self._file is None else f"/{self._file}"
        revision = "" if self._revision is None else f"@{self._revision}"
        return f"hf:{self._repository}{file}{revision}"

    @property
    def default_name(self) -> str:
        return Path(self._repository if self._file is None else self._file).name.removesuffix(
            ".gguf"
        )

    def stamp(self) -> str:
        """The commit; the hub is asked unless the source itself names one."""
        if self._revision is not None and _COMMIT.fullmatch(self._revision):
            return self._revision
        self._listing = self._list()
        return self._listing.commit

    def fetch(self, scratch: Path, folder: Path, *, sha256: str | None) -> str:
        return bring_model(self.remote_files(), scratch, folder, sha256=sha256, what=self.uri)

    def remote_files(self) -> list[RemoteFile]:
        listing = self._current_listing()
        if self._file is None:
            names = choose_files(_top_level(listing), where=self.uri)
        else:
            names = gguf_files(self._file, listing.sizes_bytes, where=f"hf:{self._repository}")
        return [self._remote_file(listing, name) for name in names]

    def fetch_description(self, scratch: Path) -> dict[str, Path]:
        listing = self._current_listing()
        names = [name for name in DESCRIPTION_FILES if name in listing.sizes_bytes]
        files = [self._remote_file(listing, name) for name in names]
        check_sizes({file.name: file.num_bytes for file in files}, where=self.uri)
        return Downloads(scratch).fetch(files, title="Looking")

    def _current_listing(self) -> _Listing:
        if self._listing is None:
            self._listing = self._list()
        return self._listing

    def _list(self) -> _Listing:
        from huggingface_hub import HfApi

        try:
            with self._errors():
                info = HfApi().model_info(
                    self._repository,
                    revision=self._revision or "main",
                    files_metadata=True,
                    timeout=_TIMEOUT_S,
                )
        except TransferInterrupted as error:
            raise SourceUnavailable(
                f"cannot reach the hub for {self.uri} ({error}). Check the network and HF_ENDPOINT."
            ) from error
        siblings = info.siblings or []
        if info.sha is None or _COMMIT.fullmatch(info.sha) is None:
            raise SourceUnavailable(f"the hub names no commit of {self.uri}: check HF_ENDPOINT.")
        sizes_bytes = {item.rfilename: item.size for item in siblings if item.size is not None}
        sha256s = {item.rfilename: item.lfs.sha256 for item in siblings if item.lfs is not None}
        return _Listing(info.sha, sizes_bytes, sha256s)

    def _remote_file(self, listing: _Listing, name: str) -> RemoteFile:
        size = listing.sizes_bytes[name]

        def read(begin: int, end: int) -> Iterator[bytes]:
            with self._errors():
                yield from self._read(listing.commit, name, begin, end, size)

        return RemoteFile(name.rsplit("/", 1)[-1], size, read, listing.sha256s.get(name))

    def _read(self, commit: str, name: str, begin: int, end: int, size: int) -> Iterator[bytes]:
        from huggingface_hub import get_session, hf_raise_for_status
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

        location = self._location(commit, name)
        headers = {"Range": f"bytes={begin}-{end - 1}", "Accept-Encoding": "identity"}
        if _origin(location) == _origin(self._url(commit, name)):
            headers |= build_hf_headers()  # the token is for the hub, not for its storage
        with get_session().stream("GET", location, headers=headers, timeout=_TIMEOUT_S) as response:
            if response.status_code in (401, 403, 404, 410):
                self._forget(name)  # a signed address that has expired
                raise TransferInterrupted(f"HTTP status {response.status_code}")
            hf_raise_for_status(response)
            if response.status_code != 206 and (begin, end) != (0, size):
                raise UnsupportedCheckpoint(f"{_origin(location)} sends no parts of files.")
            yield from response.iter_raw()

    def _url(self, commit: str, name: str) -> str:
        from huggingface_hub import hf_hub_url

        return hf_hub_url(self._repository, name, revision=commit)

    def _location(self, commit: str, name: str) -> str:
        """Where the hub keeps the content: asked once, as every answer counts against a limit."""
        from huggingface_hub import get_hf_file_metadata

        with self._lock:
            if name not in self._locations:
                metadata = get_hf_file_metadata(self._url(commit, name), timeout=_TIMEOUT_S)
                self._locations[name] = metadata.location
            return self._locations[name]

    def _forget(self, name: str) -> None:
        with self._lock:
            self._locations.pop(name, None)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Says in one line what huggingface_hub says in several."""
        from huggingface_hub import errors

        transport_error: Any = errors.HTTPError  # type: ignore[attr-defined]  # the hub's client's
        try:
            yield
        except errors.GatedRepoError as error:
            raise SourceUnavailable(
                f"{self.uri} is gated: accept its terms on the hub, and set HF_TOKEN to the token "
                "of that account."
            ) from error
        except errors.RevisionNotFoundError as error:
            raise SourceUnavailable(
                f"hf:{self._repository} has no revision {self._revision or 'main'!r}."
            ) from error
        except errors.RepositoryNotFoundError as error:
            raise SourceUnavailable(
                f"the hub has no model {self._repository}, or it is private: correct the name, or "
                "set HF_TOKEN."
            ) from error
        except errors.OfflineModeIsEnabled as error:
            raise SourceUnavailable(
                f"{self.uri} cannot be asked for: HF_HUB_OFFLINE switches the hub off."
            ) from error
        except errors.HfHubHTTPError as error:
            status = error.response.status_code
            if status in _TRANSIENT_STATUS:
                raise TransferInterrupted(f"HTTP status {status}") from error
            raise SourceUnavailable(
                f"the hub refuses {self.uri} with HTTP status {status}. Check HF_ENDPOINT and "
                "HF_TOKEN."
            ) from error
        except transport_error as error:
            raise TransferInterrupted(str(error) or type(error).__name__) from error


def _top_level(listing: _Listing) -> list[str]:
    return [name for name in listing.sizes_bytes if "/" not in name]


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"
