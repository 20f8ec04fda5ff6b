from pathlib import Path

import pytest

from src import memory as memory_module
from src.memory import available_memory, memory_shortage, readable_bytes

MEMINFO = "MemTotal:       24000000 kB\nMemFree:        1 kB\nMemAvailable:   2048 kB\n"


def group(path: Path, limit: str, used: int, files: int) -> Path:
    path.mkdir()
    (path / "memory.max").write_text(limit + "\n")
    (path / "memory.current").write_text(f"{used}\n")
    active = files // 5
    pages = f"anon 5\ninactive_file {files - active}\nactive_file {active}\n"
    (path / "memory.stat").write_text(pages)
    return path


def test_available_memory_is_that_of_the_kernel_and_a_control_group_lowers_it(tmp_path):
    meminfo = tmp_path / "meminfo"
    none = tmp_path / "none"
    meminfo.write_text(MEMINFO)
    assert available_memory(meminfo, none) == 2048 * 1024
    found = available_memory(none, none)  # by sysconf
    assert found is None or found > 0
    limited = group(tmp_path / "limited", "1000000", 700000, 50000)
    assert available_memory(meminfo, limited) == 350000
    unlimited = group(tmp_path / "unlimited", "max", 700000, 50000)
    assert available_memory(meminfo, unlimited) == 2048 * 1024
    full = group(tmp_path / "full", "1000", 5000, 0)
    assert available_memory(none, full) == 0
    # Unreadable numbers say nothing.
    meminfo.write_text("MemAvailable: lots kB\nMemAvailable:\n")
    assert available_memory(meminfo, limited) == 350000


def test_every_group_above_the_own_one_counts(tmp_path):
    group(tmp_path / "root", "max", 900, 0)
    group(tmp_path / "root" / "user", "5000", 900, 0)
    group(tmp_path / "root" / "user" / "own", "9000", 400, 0)
    own = tmp_path / "cgroup"
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(MEMINFO)
    for path, left in (
        ("user/own", 4100),
        ("user", 4100),
        ("", 2 << 20),
        ("../user", 2 << 20),
    ):
        own.write_text(f"0::/{path}\n")
        assert available_memory(meminfo, tmp_path / "root", own) == left


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 20, "5.0 MiB"),
        (3 << 29, "1.5 GiB"), (1 << 50, "1048576.0 GiB"),
    ],
)  # fmt: skip
def test_bytes_are_readable(count, text):
    assert readable_bytes(count) == text


def test_what_does_not_fit_is_told_with_the_arithmetic(monkeypatch):
    monkeypatch.setattr(memory_module, "available_memory", lambda: 1 << 20)
    assert memory_shortage(1 << 20, "a block") is None
    assert memory_shortage(2 << 20, "2 blocks") == (
        "memory: expected at most 1.0 MiB available, got 2.0 MiB for 2 blocks"
    )
    # The system does not say.
    monkeypatch.setattr(memory_module, "available_memory", lambda: None)
    assert memory_shortage(1 << 60, "much") is None
