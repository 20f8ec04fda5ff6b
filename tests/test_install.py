"""The build of a package, with a compiler that only notes what it is asked for."""

import itertools
import os
import re
import runpy
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FIND_SOURCES = runpy.run_path(str(ROOT / "csrc" / "write_units.py"))["find_sources"]
SOURCES = len(FIND_SOURCES(ROOT)) + 1  # and what cffi generates
ADVICE = "install them, such as with `apt install gcc python3-dev` on Debian and Ubuntu"
COMPILER = """#!/bin/sh
out=; input=
while [ $# -gt 0 ]; do
    case $1 in -o) out=$2; shift ;; *.c) input=$1 ;; esac
    shift
done
case $input in *probe.c) if [ -n "$NO_HEADERS" ] && grep -q Python.h "$input"; then exit 1; fi ;;
esac
case $out in *kernels*|*csrc*) echo "begin $out" >> "$NOTES"; sleep 0.1; echo "end" >> "$NOTES" ;;
esac
: > "$out"
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what a build reads, with the compiler and its notes beside it."""
    pytest.importorskip("setuptools", minversion="77")
    tree = tmp_path / "checkout"
    tracked = ("ls-files", "-z", "--", "src", "csrc", "docs", "diagrams", "setup.py")
    listed = subprocess.run(
        ["git", *tracked, "pyproject.toml", "README.md", "LICENSE"],
        cwd=ROOT, capture_output=True, check=False, text=True,
    )  # fmt: skip
    if listed.returncode:
        pytest.skip("needs a git checkout")
    for name in listed.stdout.split("\0")[:-1]:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, tree / name)
    (tmp_path / "cc").write_text(COMPILER)
    (tmp_path / "cc").chmod(0o755)
    return tree


def build(
    checkout: Path, *arguments: str, **changes: str
) -> "subprocess.CompletedProcess[str]":
    compiler = str(checkout.parent / "cc")
    kept = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
    notes = {
        "CC": compiler,
        "LDSHARED": compiler,
        "NOTES": str(checkout.parent / "notes"),
    }
    return subprocess.run(
        [sys.executable, "setup.py", *arguments],
        cwd=checkout,
        env=kept | notes | changes,
        capture_output=True,
        check=False,
        text=True,
    )


def notes_of(checkout: Path) -> list[str]:
    """Returns what the compiler was asked for since the last call."""
    notes = checkout.parent / "notes"
    lines = notes.read_text().splitlines()
    notes.unlink()
    return lines


@pytest.mark.parametrize("changes", [{"CC": "absent-compiler"}, {"NO_HEADERS": "1"}])
def test_without_compiler_or_headers_the_last_line_says_what_to_install(
    checkout, changes
):
    done = build(checkout, "--version", **changes)
    assert done.returncode == 1
    [line] = (done.stdout + done.stderr).splitlines()
    assert line.startswith("error: ")
    assert line.endswith(ADVICE)
    assert build(checkout, "--version").returncode == 0


@pytest.mark.slow
def test_the_sources_are_compiled_side_by_side_once_and_again_when_they_change(checkout):
    for where in ("one", "two"):  # an editable install names new directories each time
        places = ("--build-lib", str(checkout.parent / where), "--build-temp", where)
        done = build(checkout, "-q", "build_ext", *places)
        assert done.returncode == 0, done.stderr
        lines = notes_of(checkout)
        begun = [line.split()[1] for line in lines if line.startswith("begin")]
        compiled = [name for name in begun if name.endswith(".o")]
        assert len(compiled) == (SOURCES if where == "one" else 0)
        assert [name for name in begun if name.endswith(".so")] == begun[len(compiled) :]
        at_once = itertools.accumulate(
            1 if line.startswith("begin") else -1 for line in lines
        )
        assert (
            max(at_once) == 1
            if where == "two"
            else max(at_once) > 1 or os.cpu_count() == 1
        )
    os.utime(checkout / "csrc" / "rows" / "rows.c")
    build(checkout, "-q", "build_ext", *places)
    [line] = (line for line in notes_of(checkout) if line.endswith(".o"))
    assert line.endswith("csrc/rows/rows.o")
    os.utime(checkout / "csrc" / "kernels.h")
    build(checkout, "-q", "build_ext", *places)
    assert sum(line.endswith(".o") for line in notes_of(checkout)) == SOURCES
    build_library = ("--build-lib", str(checkout.parent / "three"))
    build(checkout, "-q", "build_ext", *build_library, CFLAGS="-DOTHER")
    assert sum(line.endswith(".o") for line in notes_of(checkout)) == SOURCES


@pytest.mark.slow
def test_a_wheel_serves_every_python_from_3_11_on_and_says_that_it_is_typed(checkout):
    done = build(checkout, "-q", "bdist_wheel", "--dist-dir", str(checkout.parent))
    assert done.returncode == 0, done.stderr
    [wheel] = checkout.parent.glob("*.whl")
    assert re.fullmatch(r"llama_bolts-[\d.]+-cp311-abi3-\w+\.whl", wheel.name)
    names = zipfile.ZipFile(wheel).namelist()
    for name in (
        "py.typed",
        "__main__.py",
        "ml/_kernels.abi3.so",
        "docs/14-forward-pass.md",
    ):
        assert f"llama_bolts/{name}" in names
    nano_files = [name for name in names if name.startswith("llama_bolts/nano/")]
    assert sorted(name.removeprefix("llama_bolts/nano/") for name in nano_files) == [
        "__init__.py",
        "model/MODEL_CARD.md",
        "model/consolidated.00.pth",
        "model/params.json",
        "model/tokenizer.model",
        "roman/adapter_config.json",
        "roman/adapter_model.safetensors",
    ]
    assert not [
        name
        for name in names
        if name.startswith(("tools/", "tests/", "llama_bolts/tools/"))
    ]
