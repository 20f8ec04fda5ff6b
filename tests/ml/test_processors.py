"""The limits of control groups, read from files that a test writes, and once from a real
group.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from src.ml.processors import cpu_limit, usable_processors

REPOSITORY = Path(__file__).resolve().parents[2]
V2_MOUNT = "30 23 0:26 {root} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"
V1_MOUNT = (
    "33 25 0:30 {root} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct"
)
OTHER_MOUNT = "35 25 0:32 / /sys/fs/cgroup/memory rw shared:16 - cgroup cgroup rw,memory"


def system(
    root: Path, mounts: list[str], groups: list[str], files: dict[str, str]
) -> Path:
    """Writes the files of a system; `files` are below /sys/fs/cgroup."""
    process = root / "proc" / "self"
    process.mkdir(parents=True)
    (process / "mountinfo").write_text("".join(f"{line}\n" for line in mounts))
    (process / "cgroup").write_text("".join(f"{line}\n" for line in groups))
    for name, text in files.items():
        file = root / "sys/fs/cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def version_2(
    root: Path, files: dict[str, str], group: str = "/a/b", mounted: str = "/"
) -> float | None:
    return cpu_limit(
        system(root, [V2_MOUNT.format(root=mounted)], [f"0::{group}"], files)
    )


def version_1(
    root: Path, files: dict[str, str], group: str = "/a/b", mounted: str = "/"
) -> float | None:
    mounts = [OTHER_MOUNT, V1_MOUNT.format(root=mounted)]
    groups = ["9:memory:/elsewhere", f"4:cpu,cpuacct:{group}", "0::/"]
    return cpu_limit(system(root, mounts, groups, files))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("100000 100000\n", 1.0),
        ("150000 100000\n", 1.5),
        ("20000 100000\n", 0.2),
        ("max 100000\n", None),
        ("", None),
        ("-5 100000\n", None),
        ("1 0\n", None),
        ("0 100000\n", None),
        ("100000\n", None),
        ("one 100000\n", None),
        ("1e5 100000\n", None),
        ("9" * 40 + " 100000\n", None),
    ],
)
def test_version_2_has_quota_and_period_in_one_file(tmp_path, text, expected):
    assert version_2(tmp_path, {"a/b/cpu.max": text}) == expected


@pytest.mark.parametrize(
    ("quota", "period", "expected"),
    [
        ("100000", "100000", 1.0), ("250000", "100000", 2.5), ("-1", "100000", None),
        ("50000", "", None), ("", "100000", None), ("50000", "x", None),
    ],
)  # fmt: skip
def test_version_1_has_them_in_two_files(tmp_path, quota, period, expected):
    names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
    texts = (quota, period)
    pairs = zip(names, texts, strict=True)
    files = {f"cpu,cpuacct/a/b/{name}": f"{text}\n" for name, text in pairs}
    assert version_1(tmp_path, files) == expected


def test_the_smallest_limit_of_a_group_and_the_groups_above_it_counts(tmp_path):
    files = {
        "cpu.max": "max 100000",
        "a/cpu.max": "150000 100000",
        "a/b/cpu.max": "400000 100000",
    }
    assert version_2(tmp_path / "above", files) == 1.5
    assert version_2(tmp_path / "own", files | {"a/b/cpu.max": "50000 100000"}) == 0.5
    other = files | {"a/c/cpu.max": "1000 100000"}
    assert version_2(tmp_path / "beside", other) == 1.5


@pytest.mark.parametrize("version", [version_1, version_2])
def test_a_container_sees_its_own_group_as_the_mount_point(tmp_path, version):
    below = "cpu,cpuacct/" if version is version_1 else ""
    files = {f"{below}cpu.max": "70000 100000"}
    assert version(tmp_path / "names", files, group="/", mounted="/") == 0.7
    assert version(tmp_path / "inside", files, "/docker/1/x", "/docker/1") == 0.7
    assert version(tmp_path / "outside", files, "/docker/2", "/docker/1") == 0.7
    assert version(tmp_path / "dots", files, "/../../x", "/") == 0.7


def test_without_files_there_is_no_limit(tmp_path):
    assert cpu_limit(tmp_path) is None
    broken = system(
        tmp_path / "broken", ["", "1 2", "- cgroup2", "a - b"], ["", "::", ":"], {}
    )
    assert cpu_limit(broken) is None
    assert usable_processors(broken) >= 1


@pytest.mark.parametrize(
    ("limit", "most"), [(5000, 1), (100_000, 1), (100_001, 2), (9_900_000, 99)]
)
def test_a_limit_is_rounded_up_and_no_more_than_the_processors_of_the_mask(
    tmp_path, monkeypatch, limit, most
):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    files = {"cpu.max": f"{limit} 100000"}
    root = system(tmp_path, [V2_MOUNT.format(root="/")], ["0::/"], files)
    assert usable_processors(root) == min(16, most)


@contextlib.contextmanager
def real_group() -> Iterator[Path]:
    """Makes a control group with a limit of half a processor, or skips the test."""
    tops = {"cpu": ("cpu.cfs_quota_us", "50000"), "": ("cpu.max", "50000 100000")}
    for below, (name, text) in tops.items():
        group = Path("/sys/fs/cgroup", below, f"llama-bolts-test-{os.getpid()}")
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            try:
                (group / name).write_text(text)
            except OSError:
                continue
            yield group
            return
        finally:
            group.rmdir()
    pytest.skip("this process may not make a control group with a limit")


def test_a_real_group_with_a_limit_gives_one_thread():
    program = (
        "import os, sys\n"
        "open(sys.argv[1] + '/cgroup.procs', 'w').write(str(os.getpid()))\n"
        "from src.ml import kernels\n"
        "from src.ml.processors import cpu_limit\n"
        "print(cpu_limit(), kernels.get_num_threads())\n"
    )
    with real_group() as group:
        command = [sys.executable, "-c", program, str(group)]
        done = subprocess.run(
            command,
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert (done.stdout, done.stderr) == ("0.5 1\n", "")
