"""The one place that opens the files of a model."""

import os
from pathlib import Path

import pytest

from src.outside import UnfitFileError, open_regular, read_whole, regular_files


def test_a_file_is_read_whole_up_to_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    assert read_whole(path, 10) == b"0123456789"
    with pytest.raises(UnfitFileError, match="size: expected at most 9 bytes, got 10 bytes"):
        read_whole(path, 9)


def test_an_empty_file_is_read_as_such(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert read_whole(tmp_path / "file", 0) == b""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system has no such files")
def test_a_file_that_does_not_tell_its_size_is_read_to_its_end_or_limit() -> None:
    content = read_whole(Path("/proc/self/status"), 1 << 20)
    assert content.startswith(b"Name:")
    assert content.endswith(b"\n")
    with pytest.raises(UnfitFileError, match="size: expected at most 5 bytes, got more"):
        read_whole(Path("/proc/self/status"), 5)


def test_a_file_that_ends_before_its_size_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    monkeypatch.setattr(regular_files, "_read_up_to", lambda stream, size, most: b"0123")
    with pytest.raises(UnfitFileError, match="size: expected 10 bytes, got 4 and then the end"):
        read_whole(path, 10)


def test_what_is_no_regular_file_is_refused_and_left_closed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, found in ((tmp_path / "pipe", "a FIFO"), (tmp_path, "a directory")):
        with pytest.raises(UnfitFileError, match=f"kind: expected a regular file, got {found}"):
            open_regular(path)
    with pytest.raises(UnfitFileError, match="kind: expected a regular file, got a character dev"):
        open_regular(Path(os.devnull))
    with pytest.raises(UnfitFileError, match="cannot be opened: No such file"):
        open_regular(tmp_path / "missing")
