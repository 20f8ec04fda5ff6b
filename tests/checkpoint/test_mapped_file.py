"""Opening model files: regular files only, never blocking, and changes noticed (rows P5 and F1)."""

import errno
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from src import ml
from src.checkpoint import CheckpointError, FileMemoryError
from src.checkpoint.mapped_file import MappedFile
from src.untrusted import read_json_object


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file.bin"
    path.write_bytes(b"0123456789abcdef")
    return path


@pytest.fixture
def _no_blocking() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TimeoutError("blocked")

    previous = signal.signal(signal.SIGALRM, stop)
    signal.alarm(5)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, previous)


def test_a_file_is_mapped_whole_and_read_only(path: Path) -> None:
    file = MappedFile(path)
    assert file.size == 16
    assert file.bytes_at(10, 13) == b"abc"
    assert memoryview(file.buffer).readonly


def test_no_addresses_for_a_file_is_a_lack_of_memory(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    with monkeypatch.context() as patch:
        patch.setattr("src.checkpoint.mapped_file.mmap.mmap", refuse)
        with pytest.raises(FileMemoryError, match="mapping: expected 16 bytes of address space"):
            MappedFile(path)
    assert MappedFile(path).size == 16


def test_a_file_that_the_system_does_not_map_is_refused_in_one_line(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENODEV, "No such device")

    with monkeypatch.context() as patch:
        patch.setattr("src.checkpoint.mapped_file.mmap.mmap", refuse)
        with pytest.raises(CheckpointError, match="cannot be mapped: No such device"):
            MappedFile(path)


def test_an_empty_file_has_an_empty_buffer(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    file = MappedFile(tmp_path / "empty")
    assert (file.size, len(file.buffer)) == (0, 0)
    file.check_unchanged()
    file.close()


@pytest.mark.parametrize(
    ("start", "stop"), [(-1, 4), (4, 17), (5, 4), (17, 17), (1 << 62, 1 << 63)]
)
def test_bytes_outside_the_file_are_refused_and_never_clamped(
    path: Path, start: int, stop: int
) -> None:
    with pytest.raises(CheckpointError, match="byte range"):
        MappedFile(path).bytes_at(start, stop)


def open_both(path: Path) -> list[str]:
    texts = []
    for opener, more in ((MappedFile, ()), (read_json_object, (1 << 16, CheckpointError))):
        with pytest.raises(CheckpointError) as caught:
            opener(path, *more)
        texts.append(str(caught.value))
    return texts


@pytest.mark.usefixtures("_no_blocking")
def test_a_fifo_is_refused_without_blocking(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert all(
        "expected a regular file, got a FIFO" in text for text in open_both(tmp_path / "fifo")
    )


def test_what_is_no_regular_file_is_refused_by_its_kind(tmp_path: Path) -> None:
    assert all("got a directory" in text for text in open_both(tmp_path))
    assert all("got a character device" in text for text in open_both(Path("/dev/null")))
    assert all("No such file" in text for text in open_both(tmp_path / "absent"))
    assert all("cannot be opened" in text for text in open_both(tmp_path / "a\0b"))
    (tmp_path / "loop").symlink_to("loop")
    assert all("symbolic links" in text for text in open_both(tmp_path / "loop"))
    (tmp_path / "dangling").symlink_to("absent")
    assert all("No such file" in text for text in open_both(tmp_path / "dangling"))


def test_a_socket_is_refused(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        open_both(tmp_path / "s")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_an_unreadable_file_is_refused(path: Path) -> None:
    path.chmod(0)
    assert all("Permission denied" in text for text in open_both(path))


def test_a_truncated_file_is_noticed_before_it_is_touched(path: Path) -> None:
    file = MappedFile(path)
    os.truncate(path, 3)
    with pytest.raises(CheckpointError, match="expected 16, got 3"):
        file.check_unchanged()


def test_a_file_truncated_after_it_was_replaced_is_noticed(path: Path, tmp_path: Path) -> None:
    file = MappedFile(path)
    os.link(path, tmp_path / "other")
    path.unlink()
    path.write_bytes(b"new")
    os.truncate(tmp_path / "other", 3)
    with pytest.raises(CheckpointError):
        file.check_unchanged()


def test_a_rewritten_file_is_noticed(path: Path) -> None:
    file = MappedFile(path)
    path.write_bytes(b"fedcba9876543210")
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1_000_000))
    with pytest.raises(CheckpointError, match="rewritten"):
        file.check_unchanged()
    assert issubclass(CheckpointError, CheckpointError)


def test_a_replaced_or_removed_file_works_on(path: Path, tmp_path: Path) -> None:
    file = MappedFile(path)
    (tmp_path / "new").write_bytes(b"x")
    os.replace(tmp_path / "new", path)
    file.check_unchanged()
    assert file.bytes_at(0, 3) == b"012"
    path.unlink()
    file.check_unchanged()
    assert file.bytes_at(0, 3) == b"012"


def test_closing_never_pulls_memory_from_under_a_tensor(path: Path) -> None:
    file = MappedFile(path)
    tensor = ml.Tensor.from_buffer(file.buffer, ml.uint8, (3,), offset=10)
    before = set(os.listdir("/proc/self/fd"))
    file.close()
    file.close()
    assert tensor.numpy().tobytes() == b"abc"
    del tensor
    assert len(set(os.listdir("/proc/self/fd"))) < len(before)


def test_a_closed_file_gives_no_bytes(path: Path) -> None:
    file = MappedFile(path)
    file.close()
    with pytest.raises(CheckpointError):
        file.bytes_at(0, 1)
