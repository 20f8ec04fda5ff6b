"""How much memory is free, and whether what is about to be allocated fits into it."""

import os
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def available_memory(meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP) -> int | None:
    """Return the bytes that can still be allocated, or None where the system does not say.

    The smaller of what the kernel calls available and what is left below the limit of the
    control group; elsewhere than on Linux the free pages that sysconf reports.
    """
    known = [n for n in (_from_meminfo(meminfo), _from_cgroup(cgroup)) if n is not None]
    return min(known) if known else _from_sysconf()


def _from_meminfo(path: Path) -> int | None:
    """Read the line `MemAvailable:  123 kB`."""
    try:
        text = path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    for line in text.splitlines():
        parts = line.split()
        if len(parts) >= 2 and parts[0] == "MemAvailable:" and parts[1].isdigit():
            return int(parts[1]) * 1024
    return None


def _from_cgroup(path: Path) -> int | None:
    """Read the limit of a control group less what its processes hold; `max` is no limit."""
    try:
        limit = (path / "memory.max").read_text(encoding="ascii", errors="replace").strip()
        used = (path / "memory.current").read_text(encoding="ascii", errors="replace").strip()
        stat = (path / "memory.stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    if not (limit.isdigit() and used.isdigit()):
        return None
    # Pages of files count as used, and are given back as soon as they are needed.
    files = [line.split()[1] for line in stat.splitlines() if line.startswith("inactive_file ")]
    reclaimable = int(files[0]) if files and files[0].isdigit() else 0
    return max(int(limit) - int(used) + reclaimable, 0)


def _from_sysconf() -> int | None:
    """Ask the C library for free pages."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def readable_bytes(count: int) -> str:
    """Write a number of bytes with one decimal: `1.5 GiB`."""
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"


def memory_shortage(needed: int, arithmetic: str) -> str | None:
    """Return the text of an error where more bytes are needed than are available, or None.

    Args:
        needed: bytes that are about to be allocated.
        arithmetic: how that number comes about.
    """
    available = available_memory()
    if available is None or needed <= available:
        return None
    return (
        f"memory: expected at most {readable_bytes(available)} available, got "
        f"{readable_bytes(needed)} for {arithmetic}"
    )
