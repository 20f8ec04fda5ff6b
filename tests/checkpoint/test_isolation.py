"""A hostile file imports nothing, opens nothing else, starts nothing: an audit hook
watches.
"""

import io
import json
import struct
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.checkpoint import hostile_pickles as hostile
from tests.support.pth_writer import integer, write_archive
from tests.support.safetensors_writer import file_bytes, write_safetensors

REPOSITORY = Path(__file__).resolve().parents[2]

# Runs in a process of its own, for an audit hook cannot be taken away again.
WATCH = """
import json, resource, sys, time
from pathlib import Path
from src.checkpoint import CheckpointError, read_pth, read_safetensors

paths = [Path(line) for line in sys.stdin.read().splitlines()]
watching, events, outcomes = False, [], []

def hook(event, arguments):
    if watching:
        events.append([event, str(arguments[0]) if arguments else ""])

sys.addaudithook(hook)
pages = int(Path("/proc/self/statm").read_text().split()[0])
most = pages * resource.getpagesize() + 64 * 2**20
resource.setrlimit(resource.RLIMIT_AS, (most, most))
for path in paths:
    events.clear()
    started = time.process_time()
    watching = True
    try:
        (read_safetensors if path.suffix == ".safetensors" else read_pth)(path)
        outcome = "read"
    except CheckpointError as error:
        outcome = "refused"
    finally:
        watching = False
    assert time.process_time() - started < 1, path
    outcomes.append([str(path), outcome, list(events)])
print(json.dumps(outcomes))
"""


def run_alone(program: str, given: str = "") -> str:
    command = [sys.executable, "-c", program]
    return subprocess.run(
        command, input=given, capture_output=True, text=True, cwd=REPOSITORY, check=True
    ).stdout


def watch(folder: Path, programs: Iterable[bytes], *more: Path) -> list[Any]:
    """Read files with these pickles, and more; return what happened.

    The process may grow by 64 MiB. A file that opens another fails at once.
    """
    paths = []
    for number, program in enumerate(programs):
        paths.append(folder / f"{number}.pth")
        write_archive(paths[-1], program, {"0": bytes(96)})
    paths += more
    outcomes: list[Any] = json.loads(run_alone(WATCH, "\n".join(map(str, paths))))
    assert [outcome[0] for outcome in outcomes] == list(map(str, paths))
    for path, _, events in outcomes:
        assert {argument for name, argument in events if name == "open"} == {path}
    return outcomes


needs_statm = pytest.mark.skipif(
    not Path("/proc/self/statm").exists(), reason="the system does not tell sizes"
)


@needs_statm
def test_hostile_files_cause_no_import_no_other_open_and_no_process(
    tmp_path: Path,
) -> None:
    """The last file is a good one, which opens nothing else either."""
    programs = [program for program, _ in hostile.CODE.values()]
    *refused, good = watch(
        tmp_path, [*programs, hostile.storage_program(count=integer(24))]
    )
    for _, outcome, events in refused:
        assert outcome == "refused"
        assert {name for name, _ in events} == {"open", "mmap.__new__"}
    assert good[1] == "read"


GREEDY_HEADERS = {
    "one key twice": b'{"x":0,'
    + b"".join(b'"%06d":0,' % n for n in range(95_000))
    + b'"x":0}',
    "empty lists": b'{"a":[' + b"[]," * 340_000 + b"[]]}",
    "numbers": b'{"a":[' + b"1," * 500_000 + b"1]}",
    "one long name": b'{"' + b"a" * 1_000_000 + b'":3}',
    "open brackets": b'{"a":' + b"[" * 1_000_000,
    "backslashes": b'{"' + b"\\" * 1_000_000,
    "metadata": b'{"__metadata__":{"a":"' + b"b" * 1_000_000 + b'"},"t":0}',
}


@needs_statm
def test_greedy_safetensors_files_are_refused_within_64_mib(tmp_path: Path) -> None:
    paths = []
    for number, header in enumerate(GREEDY_HEADERS.values()):
        assert len(header) <= 1.1e6
        paths.append(tmp_path / f"{number}.safetensors")
        paths[-1].write_bytes(file_bytes(header))
    write_safetensors(tmp_path / "good.safetensors", {"a": np.ones(3, np.float32)})
    outcomes = watch(tmp_path, [], *paths, tmp_path / "good.safetensors")
    assert [outcome for _, outcome, _ in outcomes] == ["refused"] * len(paths) + ["read"]


@needs_statm
def test_greedy_pickles_and_archives_are_refused_within_64_mib(tmp_path: Path) -> None:
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data.pkl", bytes(1 << 27))
    many = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 0xFFFE, 0xFFFE, 0xFFFE * 46, 0, 0)
    paths = [tmp_path / name for name in ("bomb.pth", "many.pth", "more.pth")]
    for path, content in zip(
        paths, (bomb.getvalue(), many, bytes(1000) + many), strict=True
    ):
        path.write_bytes(content)
    outcomes = watch(tmp_path, hostile.GREEDY.values(), *paths)
    assert {outcome for _, outcome, _ in outcomes} == {"refused"}


@needs_statm
def test_the_limit_of_the_process_that_watches_bites() -> None:
    with pytest.raises(subprocess.CalledProcessError):
        run_alone(WATCH + "\nbytes(80 << 20)\n")


def test_the_reader_needs_neither_zipfile_nor_pytorch() -> None:
    modules = run_alone(
        "import sys, src.checkpoint; print(*sys.modules, sep='\\n')"
    ).split()
    assert "src.checkpoint" in modules
    assert not {"zipfile", "torch"} & set(modules)
