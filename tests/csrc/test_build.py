"""What the sources and the compiled extension hold."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from src.ml import _kernels, native

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "csrc").glob("*.[ch]"))
SURFACE = (ROOT / "csrc" / "kernels.h").read_text(encoding="utf-8")


def code_of(path: Path) -> str:
    """Return a source without its comments."""
    return re.sub(r"/\*.*?\*/", "", path.read_text(encoding="utf-8"), flags=re.S)


def test_the_extension_offers_all_of_the_surface_and_nothing_else() -> None:
    declared = re.findall(r"^(?:\w+ )+\*?(\w+)\([^;]*\);", SURFACE, flags=re.M)
    constants = re.findall(r"\b([A-Z][A-Z0-9_]+) = \d", SURFACE)
    assert len(declared) > 10
    assert sorted(dir(_kernels.lib)) == sorted(declared + constants)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_kernels_never_allocate_print_or_exit(path: Path) -> None:
    calls = r"\b(malloc|calloc|realloc|alloca|free|f?printf|puts|exit|abort|assert)\s*\("
    assert not re.search(calls, code_of(path))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_intrinsics_stay_in_the_headers_of_the_instruction_sets(path: Path) -> None:
    if not re.match(r"(dot_avx|nf4_avx|quantized_avx|fold_x86)", path.name):
        assert not re.search(r"\b_mm\d*_|immintrin", code_of(path))


def test_no_flag_loosens_arithmetic_or_ties_the_build_to_one_machine() -> None:
    text = (ROOT / "csrc" / "build_kernels.py").read_text(encoding="utf-8")
    for flag in ("-ffast-math", "-Ofast", "-march", "-mtune", "-funsafe"):
        assert flag not in text
    assert "-ffp-contract=off" in text


def test_the_bfloat16_instruction_is_in_the_extension() -> None:
    objdump = shutil.which("objdump")
    if objdump is None or not hasattr(_kernels, "__file__"):
        pytest.skip("needs objdump")
    if "avx2" not in native.available_isas():
        pytest.skip("not an x86-64 machine")
    if "emulated" in str(native.build_info()["compiler"]):
        pytest.skip("a test build, which emulates the instruction")
    listing = subprocess.run(
        [objdump, "-d", str(_kernels.__file__)], capture_output=True, text=True, check=True
    )
    assert listing.stdout.count("vdpbf16ps") >= 24
