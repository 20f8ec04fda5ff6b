"""Opening model files: regular files only, never blocking, and changes noticed (rows P5
and F1).
"""

import errno
import os
import socket
from pathlib import Path
from unittest.mock import Mock

import pytest

from src import ml
from src.checkpoint import CheckpointError, FileMemoryError
from src.checkpoint.mapped_file import MappedFile
from tests.checkpoint.refusals import refusal_of


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file.bin"
    path.write_bytes(b"0123456789abcdef")
    return path


def test_a_file_is_mapped_whole_and_read_only(path: Path) -> None:
    file = MappedFile(path)
    assert file.size == 16
    assert file.bytes_at(10, 13) == b"abc"
    assert memoryview(file.buffer).readonly


@pytest.mark.parametrize(
    ("number", "error", "words"),
    [
        (errno.ENOMEM, FileMemoryError, "mapping: expected 16 bytes of address space"),
        (
            errno.ENODEV,
            CheckpointError,
            "mapping: expected a readable file, got No such device",
        ),
    ],
)
def test_a_file_that_the_system_does_not_map_is_refused_and_no_addresses_are_a_lack_of_memory(
    path: Path, monkeypatch: pytest.MonkeyPatch, number: int, error: type, words: str
) -> None:
    with monkeypatch.context() as patch:
        refuse = Mock(side_effect=OSError(number, os.strerror(number)))
        patch.setattr("src.checkpoint.mapped_file.mmap.mmap", refuse)
        with pytest.raises(error, match=words):
            MappedFile(path)
    assert MappedFile(path).size == 16


def test_an_empty_file_has_an_empty_buffer(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    file = MappedFile(tmp_path / "empty")
    assert (file.size, len(file.buffer)) == (0, 0)
    file.check_unchanged()
    file.close()


@pytest.mark.parametrize(
    ("start", "stop"), [(-1, 4), (4, 17), (5, 4), (17, 17), (1 << 62, 1 << 63)]
)
def test_bytes_outside_are_refused_and_never_clamped(
    path: Path, start: int, stop: int
) -> None:
    with pytest.raises(CheckpointError, match="byte range"):
        MappedFile(path).bytes_at(start, stop)


def refused(path: Path, words: str) -> None:
    refusal_of(MappedFile, path, match=words)


def test_what_is_no_regular_file_is_refused_by_its_kind_without_blocking(
    tmp_path: Path,
) -> None:
    os.mkfifo(tmp_path / "fifo")
    refused(tmp_path / "fifo", "expected a regular file, got a FIFO")
    refused(tmp_path, "got a directory")
    refused(Path("/dev/null"), "got a character device")
    refused(tmp_path / "absent", "No such file")
    refused(tmp_path / "a\0b", "cannot be opened")
    (tmp_path / "loop").symlink_to("loop")
    refused(tmp_path / "loop", "symbolic links")
    (tmp_path / "dangling").symlink_to("absent")
    refused(tmp_path / "dangling", "No such file")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        refused(tmp_path / "s", "cannot be opened")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_an_unreadable_file_is_refused(path: Path) -> None:
    path.chmod(0)
    refused(path, "Permission denied")


@pytest.mark.parametrize("replaced", [False, True])
def test_a_truncated_file_is_noticed_before_it_is_touched(
    path: Path, replaced: bool
) -> None:
    file = MappedFile(path)
    other = path.with_name("other")
    os.link(path, other)
    if replaced:
        path.unlink()
        path.write_bytes(b"new")
    os.truncate(other, 3)
    with pytest.raises(CheckpointError, match="expected 16, got 3"):
        file.check_unchanged()


def test_a_rewritten_file_is_noticed(path: Path) -> None:
    file = MappedFile(path)
    path.write_bytes(b"fedcba9876543210")
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1_000_000))
    with pytest.raises(CheckpointError, match="rewritten"):
        file.check_unchanged()


def test_a_replaced_or_removed_file_works_on(path: Path, tmp_path: Path) -> None:
    file = MappedFile(path)
    (tmp_path / "new").write_bytes(b"x")
    os.replace(tmp_path / "new", path)
    for _ in range(2):
        file.check_unchanged()
        assert file.bytes_at(0, 3) == b"012"
        path.unlink(missing_ok=True)


def test_closing_never_pulls_memory_from_under_a_tensor(path: Path) -> None:
    file = MappedFile(path)
    tensor = ml.Tensor.from_buffer(file.buffer, ml.uint8, (3,), offset=10)
    before = set(os.listdir("/dev/fd"))
    file.close()
    file.close()
    with pytest.raises(CheckpointError):
        file.bytes_at(0, 1)
    assert tensor.numpy().tobytes() == b"abc"
    del tensor
    assert len(set(os.listdir("/dev/fd"))) < len(before)
