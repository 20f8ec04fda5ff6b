"""Download models from Hugging Face's hub into the cache of its Python library.

The library handles tokens, the endpoint, offline mode, revisions and retries. This module
selects the files to download and compares them with the hub's descriptions.
"""

import contextlib
import logging
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..installation import install_hint
from ..memory import readable_bytes
from ..untrusted import escape_line, label_of, read_json_object
from .downloads import Downloads, check_consent, check_space, sha256_of
from .errors import CatalogError, mismatch
from .local_models import find_in_hub_cache, hub_cache
from .repositories import INDEX, RepositoryName, needed_files

_LONGEST_REASON = 200
_MOST_INDEX_BYTES = 64 << 20
_COMMIT = re.compile(r"[0-9a-f]{40}", re.ASCII)
_ETAG = re.compile(r"[\w-]+", re.ASCII)
_FILE = re.compile(r"[\w+-][\w.+-]*(/[\w+-][\w.+-]*)*", re.ASCII)
_DENIED = (401, 403)
_DEFAULT_ENDPOINT = "https://huggingface.co"


@dataclass(frozen=True)
class _HubFile:
    """The hub's description of a file. Only large files have a hash."""

    nbytes: int
    sha256: str | None


def download_repository(name: RepositoryName, downloads: Downloads) -> Path:
    """Download a model's missing files into the hub's cache; return the model's path.

    Raises:
        CatalogError: The library is not installed, the repository or file is missing or
            not accessible, there is no network, or a downloaded file differs from the
            hub's description.
    """
    try:
        import huggingface_hub
        import huggingface_hub.errors
    except ImportError:
        rule = "a path, or the package huggingface_hub for a hub repository"
        raise mismatch(
            name.text, "model", rule, f"neither; {install_hint('hub')}"
        ) from None
    return _Download(huggingface_hub, name, downloads).run()


class _Download:
    """The download of one model."""

    def __init__(self, library: Any, name: RepositoryName, downloads: Downloads) -> None:
        self._library = library
        self._name = name
        self._downloads = downloads
        self._endpoint = os.environ.get("HF_ENDPOINT") or _DEFAULT_ENDPOINT
        self._revision = name.revision or "main"
        self._commit = ""
        self._files: dict[str, _HubFile] = {}
        self._done = 0  # number of downloaded bytes
        self._total = 0

    def run(self) -> Path:
        """Download the missing files, small ones first, and return the model's path."""
        name = self._name
        with self._reported(), _quiet():
            self._describe()
            needed = needed_files(name, self._files.keys())
            if needed is None:
                rule = (
                    f"a GGUF file {name.file}"
                    if name.file
                    else "safetensors or GGUF files"
                )
                raise mismatch(name.text, "files", rule, "none in the repository")
            if INDEX in needed.files:
                index = self._download(INDEX)
                needed = (
                    needed_files(name, self._files.keys(), self._shards(index)) or needed
                )
            missing = [
                file for file in needed.files if not self._cached_path(file).exists()
            ]
            self._total = sum(self._files[file].nbytes for file in missing)
            check_consent(name.text, self._total, self._downloads)
            check_space(name.text, hub_cache(), self._total)
            size = readable_bytes(self._total)
            note = f"downloading {size} of {self._endpoint}/{name.repository}"
            self._downloads.note(f"{name.text}: {note} into {label_of(hub_cache())}")
            for file in missing:
                self._download(file)
        path = find_in_hub_cache(name)
        if path is None:
            raise mismatch(
                name.text, "download", "all files of the model", "a part of them"
            )
        return path

    def _describe(self) -> None:
        """Request the commit and the list of files from the hub."""
        api = self._library.HfApi(endpoint=self._endpoint)
        info = api.model_info(
            self._name.repository, revision=self._revision, files_metadata=True
        )
        self._commit = str(info.sha)
        if not _COMMIT.fullmatch(self._commit):
            raise mismatch(
                self._name.text, "commit", "40 digits", escape_line(self._commit, 80)
            )
        for file in info.siblings or ():
            # Skip other names, which models do not need and which could leave the cache.
            if _FILE.fullmatch(file.rfilename) and file.size is not None:
                sha256 = None if file.lfs is None else str(file.lfs.sha256)
                self._files[file.rfilename] = _HubFile(int(file.size), sha256)

    def _shards(self, index: Path) -> list[str]:
        """Return the repository's files that are listed in an index."""
        weights = read_json_object(index, _MOST_INDEX_BYTES, CatalogError).get(
            "weight_map"
        )
        names = {*weights.values()} if isinstance(weights, dict) else set()
        return sorted(file for file in self._files if file in names)

    def _cached_path(self, file: str) -> Path:
        """Return the path of a file in the library's cache."""
        folder = hub_cache() / f"models--{self._name.repository.replace('/', '--')}"
        return folder / "snapshots" / self._commit / file

    def _download(self, file: str) -> Path:
        """Download and check a file, unless it is already in the cache."""
        path_in_cache = self._cached_path(file)
        if path_in_cache.exists():
            return path_in_cache
        self._check_header(file)
        path = self._library.hf_hub_download(
            self._name.repository,
            file,
            revision=self._revision,
            cache_dir=hub_cache(),
            endpoint=self._endpoint,
            tqdm_class=self._progress_class(),
        )
        if Path(path) != path_in_cache:
            rule = f"commit {self._commit}"
            raise mismatch(self._name.text, file, rule, "a newer one; try again")
        self._check_content(file, path_in_cache)
        return path_in_cache

    def _check_header(self, file: str) -> None:
        """Check a file's ETag, which the library uses as a file name in its cache."""
        url = self._library.hf_hub_url(
            self._name.repository, file, revision=self._revision, endpoint=self._endpoint
        )
        metadata = self._library.get_hf_file_metadata(url, endpoint=self._endpoint)
        if not _ETAG.fullmatch(str(metadata.etag)):
            got = escape_line(str(metadata.etag), 80)
            raise mismatch(self._name.text, f"ETag of {file}", "letters and digits", got)

    def _check_content(self, file: str, path: Path) -> None:
        """Compare a file with the hub's description of it; remove it if they differ."""
        expected = self._files[file]
        size = path.stat().st_size
        digest = expected.sha256
        if size == expected.nbytes and digest is not None:
            digest = sha256_of(path)
        if size == expected.nbytes and digest == expected.sha256:
            return
        blob = path.resolve()
        path.unlink()
        if blob.parent.name == "blobs":
            blob.unlink(missing_ok=True)
        if size != expected.nbytes:
            raise mismatch(self._name.text, f"size of {file}", expected.nbytes, size)
        raise mismatch(self._name.text, f"sha256 of {file}", expected.sha256, digest)

    def _progress_class(self) -> type:
        """Return a progress bar class for the library, which creates one bar per file."""
        download = self

        class Bar:
            def __init__(self, *_: object, initial: int = 0, **__: object) -> None:
                self.update(initial)

            def update(self, count: float | None = 1) -> None:
                download._done += int(count or 0)
                download._downloads.progress(
                    min(download._done, download._total), download._total
                )

            def __enter__(self) -> "Bar":
                return self

            def __exit__(self, *_: object) -> None:
                pass

            def __getattr__(self, _name: str) -> object:
                return lambda *_, **__: None  # ignore calls for a visible bar

        return Bar

    @contextlib.contextmanager
    def _reported(self) -> Iterator[None]:
        """Convert the library's errors to one-line CatalogErrors."""
        errors = self._library.errors
        try:
            yield
        except CatalogError:
            raise
        except (errors.GatedRepoError, errors.DisabledRepoError):
            page = f"{self._endpoint}/{self._name.repository}"
            rule = f"a token (HF_TOKEN) of an account that accepted the terms at {page}"
            raise mismatch(self._name.text, "access", rule, "none") from None
        except errors.RepositoryNotFoundError:
            rule = (
                f"a path, or a repository at {self._endpoint} (a private one needs "
                "HF_TOKEN)"
            )
            raise mismatch(self._name.text, "model", rule, "nothing") from None
        except errors.RevisionNotFoundError:
            raise mismatch(self._name.text, "revision", self._revision, "none") from None
        except (
            *(errors.HTTPError, errors.XetDownloadError, OSError, ValueError),
            *(AttributeError, KeyError, TypeError),  # the response has an unexpected form
        ) as error:
            raise self._failure(error) from None

    def _failure(self, error: Exception) -> CatalogError:
        """Return the error for a download that failed in the hub or the network."""
        response = getattr(error, "response", None)
        status = getattr(response, "status_code", None)
        if status in _DENIED:
            rule = f"access at {self._endpoint} (with a token in HF_TOKEN)"
            return mismatch(self._name.text, "access", rule, f"HTTP status {status}")
        first = str(error).strip().partition("\n")[0]
        got = (
            f"{type(error).__name__}: {first}"
            if status is None
            else f"HTTP status {status}"
        )
        cause = error.__cause__ or error.__context__
        if status is None and cause is not None and type(cause).__name__ not in got:
            got += f" ({type(cause).__name__})"
        rule = f"files of {self._endpoint}"
        by_hand = (
            f"by hand: `hf download {self._name.repository}` where there is a network"
        )
        reason = escape_line(got, _LONGEST_REASON)
        return mismatch(self._name.text, "download", rule, f"{reason}; {by_hand}")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Prevent the library from writing to the terminal; its errors are still raised."""
    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
