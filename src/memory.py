"""Measure available memory, and recognize errors caused by insufficient memory."""

import os
import re
import sys
from pathlib import Path

if sys.platform != "linux":
    import psutil

NO_MEMORY_TEXT = "memory: the system refused the allocation"
# Messages of the dynamic loader when the address space is limited.
_LOADER_TEXTS = ("failed to map segment", "cannot map", "annot allocate memory")


def available_memory(
    meminfo: Path = Path("/proc/meminfo"),
    cgroups: Path = Path("/sys/fs/cgroup"),
    own_cgroup: Path = Path("/proc/self/cgroup"),
) -> int | None:
    """Return the number of bytes that can still be allocated, or None if unknown."""
    kilobytes = re.search(
        r"^MemAvailable:[ \t]+(\d+)(?!\S)", _text_of(meminfo), re.MULTILINE
    )
    limits = [int(kilobytes[1]) * 1024] if kilobytes else []
    free = map(_from_cgroup, _own_cgroups(cgroups, own_cgroup))
    limits += [n for n in free if n is not None]
    return min(limits) if limits else _from_system()


def _text_of(path: Path) -> str:
    """Read a system file, or return an empty string if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _own_cgroups(root: Path, own: Path) -> list[Path]:
    """Return the version 2 control groups whose limits apply to this process.

    Source: man 7 cgroups.
    """
    line = re.search(r"^0::/(.*)$", _text_of(own), re.MULTILINE)
    group = root / line[1].strip("/") if line and ".." not in line[1] else root
    groups = (group, *group.parents)
    return [directory for directory in groups if directory.is_relative_to(root)]


def _from_cgroup(group: Path) -> int | None:
    """Return a control group's limit minus its current use, or None without a limit."""
    limit, used, stat = (
        _text_of(group / name).strip()
        for name in ("memory.max", "memory.current", "memory.stat")
    )
    if not (limit.isdecimal() and used.isdecimal()):
        return None
    # File pages count as used, but the system reclaims them when memory is needed.
    pages = re.findall(r"^(?:in)?active_file (\d+)$", stat, re.MULTILINE)
    return max(int(limit) - int(used) + sum(map(int, pages)), 0)


def _from_system() -> int | None:
    """Return the free memory in bytes, from the C library on Linux or from psutil."""
    if sys.platform != "linux":
        return int(psutil.virtual_memory().available)
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def readable_bytes(count: int) -> str:
    """Format a number of bytes with one decimal place, such as `1.5 GiB`."""
    if count < 1024:
        return f"{count} B"
    power = min((count.bit_length() - 1) // 10, 3)
    return f"{count / 1024**power:.1f} {('KiB', 'MiB', 'GiB')[power - 1]}"


def memory_shortage(needed: int, arithmetic: str) -> str | None:
    """Return an error message if not enough memory is available, or None if it is.

    Args:
        needed: The number of bytes needed.
        arithmetic: An explanation of what the memory is needed for.
    """
    available = available_memory()
    if available is None or needed <= available:
        return None
    return (
        f"memory: expected at most {readable_bytes(available)} available, got "
        f"{readable_bytes(needed)} for {arithmetic}"
    )


def is_lack_of_memory(error: BaseException) -> bool:
    """Return whether an error was caused by insufficient memory.

    The error may come from an allocation or from loading a library.
    """
    if isinstance(error, ImportError):
        return any(text in str(error) for text in _LOADER_TEXTS)
    return isinstance(error, MemoryError)
