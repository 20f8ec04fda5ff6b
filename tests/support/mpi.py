"""Start several ranks on this machine, and find their processes."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MPIRUN = shutil.which(
    "mpirun", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}"
)
HAS_MPI = bool(importlib.util.find_spec("mpi4py")) and MPIRUN is not None
needs_mpi = pytest.mark.skipif(
    not HAS_MPI, reason="MPI is not installed: pip install -e '.[mpi]' runs these tests"
)
# Before the number of ranks; containers run as root.
LAUNCH = (str(MPIRUN), "--allow-run-as-root", "--oversubscribe", "-n")


def mpirun(
    ranks: int, *command: str, **changes: str
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*LAUNCH, str(ranks), *command],
        env=os.environ | changes,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def processes(parent: int) -> dict[int, int]:
    """Find the ranks below mpirun: each with its process."""
    found = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if int((place / "stat").read_text().rpartition(")")[2].split()[1]) == parent:
                settings = (place / "environ").read_bytes().split(b"\0")
                (rank,) = [
                    s[21:] for s in settings if s.startswith(b"OMPI_COMM_WORLD_RANK=")
                ]
                found[int(rank)] = int(place.name)
        except (OSError, ValueError):
            continue
    return found
