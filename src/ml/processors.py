"""Usable processor count, based on the CPU affinity mask and control group limits.

A container or service that is limited to one CPU still sees every processor of the
machine. If it starts one thread per processor, these threads use up the CPU quota early
in each period and then wait for the next period, so they are slower than a single thread.
"""

import math
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

# Maximum number of bytes to read from a system file.
_MOST_BYTES = 1 << 20


def usable_processors(root: Path = Path("/")) -> int:
    """Return how many threads of this process can run at the same time, at least 1.

    Args:
        root: The directory that contains `proc` and `sys`; only tests change it.
    """
    if hasattr(os, "sched_getaffinity"):
        processors = len(os.sched_getaffinity(0))
    else:
        processors = os.cpu_count() or 1
    limit = cpu_limit(root)
    if limit is None:
        return processors
    return max(1, min(processors, math.ceil(limit)))


def cpu_limit(root: Path = Path("/")) -> float | None:
    """Return the lowest CPU limit among this process's control groups, or None.

    A limit of 1.5 allows 150 ms of CPU time per 100 ms period. Control groups version 2
    stores the limit in `cpu.max`, version 1 in `cpu.cfs_quota_us` and
    `cpu.cfs_period_us`. A group's limit also applies to its descendants.
    """
    limits = [_limit_of_group(group) for group in _groups(root)]
    return min((limit for limit in limits if limit is not None), default=None)


def _limit_of_group(group: Path) -> float | None:
    """Read the CPU limit of one control group, or return None if it has none."""
    quota, _, period = _text(group / "cpu.max").strip().partition(" ")
    if not quota:
        quota = _text(group / "cpu.cfs_quota_us").strip()
        period = _text(group / "cpu.cfs_period_us").strip()
    if not (_is_count(quota) and _is_count(period)):
        return None  # "max" or -1 (no limit), or the CPU controller is not enabled
    if int(quota) == 0 or int(period) == 0:
        return None
    return int(quota) / int(period)


def _groups(root: Path) -> Iterator[Path]:
    """Yield the control group directories that may limit this process's CPU time."""
    paths = dict(_paths_by_controller(_text(root / "proc/self/cgroup")))
    for line in _text(root / "proc/self/mountinfo").splitlines():
        # ID PARENT DEVICE ROOT MOUNT-POINT OPTIONS [TAGS] - TYPE SOURCE SUPER-OPTIONS
        mount, _, kind = line.partition(" - ")
        fields = mount.split(" ")
        kinds = kind.split(" ")
        if len(fields) < 6 or len(kinds) < 3:
            continue
        if kinds[0] == "cgroup2":
            path = paths.get("")
        elif kinds[0] == "cgroup" and "cpu" in kinds[2].split(","):
            path = paths.get("cpu")
        else:
            continue
        if path is not None:
            top = root / fields[4].lstrip("/")
            yield from _group_and_parents(top, path, fields[3])


def _paths_by_controller(text: str) -> Iterator[tuple[str, str]]:
    """Yield each controller in /proc/self/cgroup with the path of this process's group.

    The version 2 hierarchy has an empty controller name.
    """
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for controller in controllers.split(","):
            yield controller, path


def _group_and_parents(top: Path, path: str, mounted: str) -> Iterator[Path]:
    """Yield the directories of a group and its ancestors, down from the mount point.

    A container may see only the mounted part of the tree, where the mount point is the
    container's own group.
    """
    yield top
    group = PurePosixPath(path)
    if not group.is_relative_to(mounted) or ".." in group.parts:
        return
    directory = top
    for part in group.relative_to(mounted).parts:
        directory = directory / part
        yield directory


def _text(path: Path) -> str:
    """Return the contents of a system file, or an empty string if it is unreadable."""
    try:
        with path.open("rb") as file:
            return file.read(_MOST_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 16
