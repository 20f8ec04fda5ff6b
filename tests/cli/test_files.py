"""Files that a person names: read within bounds, written as a whole or not at all."""

import os
from pathlib import Path

import pytest

from src.cli.errors import UsageError
from src.cli.files import named_path, read_text, write_whole


@pytest.mark.parametrize(
    ("typed", "path"),
    [
        ("a b.txt", "a b.txt"),
        ("'a b.txt'", "a b.txt"),
        ('"a.txt"', "a.txt"),
        ("it's", "it's"),
        ("'", "'"),
        ("~/x", f"{Path.home()}/x"),
        ("~nobody-of-that-name/x", "~nobody-of-that-name/x"),
    ],
)
def test_a_path_is_what_was_typed(typed: str, path: str) -> None:
    assert named_path(typed) == Path(path)


@pytest.mark.parametrize("typed", ["", "''"])
def test_no_name_is_refused(typed: str) -> None:
    with pytest.raises(UsageError, match="name of a file"):
        named_path(typed)


def test_text_is_read_without_the_mark_of_its_byte_order(tmp_path: Path) -> None:
    file = tmp_path / "text"
    file.write_bytes(b"\xef\xbb\xbfna\xc3\xafve\r\n")
    assert read_text(file, 100) == "na\u00efve\r\n"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"x" * 101, "size: expected at most 100 bytes, got 101"),
        (b"ab\xff", "text: expected UTF-8, got other bytes at byte 2"),
        (b"ab\0", "text: expected text, got a zero at byte 2"),
    ],
)
def test_what_is_no_text_or_too_long_is_refused(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    file = tmp_path / "text"
    file.write_bytes(content)
    with pytest.raises(UsageError, match=f"{file}: {reason}"):
        read_text(file, 100)
    file.write_bytes(b"x" * 100)
    assert read_text(file, 100) == "x" * 100


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, reason in (
        ("nothing", "cannot be opened: No such file"),
        (".", "expected a regular file, got a directory"),
        ("pipe", "expected a regular file, got a FIFO"),
        ("a\0b", "cannot be opened: 'embedded null byte'"),
        ("x" * 300, "cannot be opened: File name too long"),
    ):
        with pytest.raises(UsageError, match=reason):
            read_text(tmp_path / name, 100)


def test_a_new_file_is_its_owners_alone_and_an_old_one_keeps_its_permissions(
    tmp_path: Path,
) -> None:
    file = tmp_path / "file"
    write_whole(file, b"new")
    assert (file.read_bytes(), file.stat().st_mode & 0o777) == (b"new", 0o600)
    file.chmod(0o640)
    write_whole(file, b"newer")
    assert (file.read_bytes(), file.stat().st_mode & 0o777) == (b"newer", 0o640)
    assert os.listdir(tmp_path) == ["file"]


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "file")
    write_whole(tmp_path / "link", b"x")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_bytes() == b"x"


@pytest.mark.parametrize("name", ["fsync", "replace"])
@pytest.mark.parametrize("fault", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, fault: BaseException
) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"old")

    def fail(*_arguments: object) -> None:
        raise fault

    with monkeypatch.context() as patch:
        patch.setattr(os, name, fail)
        with pytest.raises((UsageError, KeyboardInterrupt)) as raised:
            write_whole(file, b"new")
    if isinstance(fault, OSError):
        assert str(raised.value) == f"{file}: cannot be written: No space left on device"
    assert (file.read_bytes(), os.listdir(tmp_path)) == (b"old", ["file"])


def test_where_nothing_can_be_written_it_says_so(tmp_path: Path) -> None:
    for path, reason in (
        (tmp_path, "it is not a regular file"),
        (tmp_path / "no" / "file", "No such file or directory"),
        (Path("/dev/null"), "it is not a regular file"),
        (tmp_path / "a\0b", "null byte"),
    ):
        with pytest.raises(UsageError, match=f"cannot be written: .*{reason}"):
            write_whole(path, b"x")
