"""The number of processors for this process, by affinity mask and control groups.

A container or a service with a limit of one CPU sees all processors of the machine. With
as many threads as processors it uses up its share of each period early and then waits for
the next period, so several threads are slower than one.
"""

import math
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

# The most bytes that are read from a system file.
_MOST_BYTES = 1 << 20


def usable_processors(root: Path = Path("/")) -> int:
    """Return how many threads can compute at once in this process, at least 1.

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
    """Return the smallest CPU limit of the control groups of this process, or None.

    A limit of 1.5 allows 150 ms of computation in each period of 100 ms. Version 2 of
    control groups stores it as `cpu.max`, version 1 as `cpu.cfs_quota_us` and
    `cpu.cfs_period_us`. A limit of a group also applies to the groups below it.
    """
    limits = [_limit_of_group(group) for group in _groups(root)]
    return min((limit for limit in limits if limit is not None), default=None)


def _limit_of_group(group: Path) -> float | None:
    """Return the limit in the files of one group."""
    quota, _, period = _text(group / "cpu.max").strip().partition(" ")
    if not quota:
        quota = _text(group / "cpu.cfs_quota_us").strip()
        period = _text(group / "cpu.cfs_period_us").strip()
    if not (_is_count(quota) and _is_count(period)):
        return None  # "max", or -1, or not a group of the CPU controller
    if int(quota) == 0 or int(period) == 0:
        return None
    return int(quota) / int(period)


def _groups(root: Path) -> Iterator[Path]:
    """Yield the directories of the groups of this process that may limit its CPU time."""
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
    """Yield each controller of /proc/self/cgroup with the group of this process in it.

    The controller of version 2 has an empty name.
    """
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for controller in controllers.split(","):
            yield controller, path


def _group_and_parents(top: Path, path: str, mounted: str) -> Iterator[Path]:
    """Yield the directories of a group and of its parents, up to the mount point.

    A container may see only the part of the tree that is mounted in it: its own group, as
    the mount point.
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
    """Return the text of a system file, or an empty text if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(_MOST_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 16
