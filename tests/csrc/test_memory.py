"""The kernels stay within their tensors."""

import os
import signal
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from . import calls
from .calls import lib
from .guard_cases import CASES, SIZES, Sizes, calls_of, sizes_of
from .guard_pages import GuardPages, Memory, Note, watching
from .operands import f32, normal
from .run_guard_pages import ROOT, counts_of
from .surface import kernels

ends = pytest.mark.parametrize("end", ["first", "last"])


def test_every_kernel_of_the_surface_has_a_case_between_guard_pages() -> None:
    assert sorted(CASES) == sorted(kernels())


def test_every_size_is_taken_by_every_dimension_of_every_kernel() -> None:
    for case in CASES.values():
        quick = [sizes for _, sizes in calls_of(case, "quick")]
        for axis in range(case.dimensions):
            assert {sizes[axis] for sizes in quick} >= set(SIZES)


def test_a_thorough_run_combines_every_size_with_every_variant_once() -> None:
    for case in CASES.values():
        combined = product(case.crossed, repeat=case.dimensions)
        expected = {*sizes_of(case, "quick"), *combined}
        sizes_made: dict[int, list[Sizes]] = {}
        for variant, sizes in calls_of(case, "thorough"):
            sizes_made.setdefault(id(variant), []).append(sizes)
        for variant in case.variants:
            fitting = {case.fitting(variant, sizes) for sizes in expected}
            assert sorted(sizes_made[id(variant)]) == sorted(fitting)


@pytest.mark.parametrize(
    "level", ["quick", pytest.param("thorough", marks=pytest.mark.slow)]
)
def test_no_kernel_touches_a_byte_beyond_either_end_of_its_arrays(
    isa: str, level: str
) -> None:
    if level == "thorough" and isa != calls.available_isas()[0]:
        pytest.skip(
            "minutes for each set: python -m tests.csrc.run_guard_pages has them all"
        )
    made = {name: len(list(calls_of(case, level))) for name, case in CASES.items()}
    assert counts_of(isa, level) == {"first": made, "last": made}


# What must be seen, so that nothing being seen means something: run in a program of its
# own.
@ends
@pytest.mark.parametrize(
    "mistaken", [True, False], ids=["a word too far", "none too far"]
)
def test_a_kernel_that_reads_one_word_too_far_is_killed(end: str, mistaken: bool) -> None:
    before, beyond = (4 * mistaken, 0) if end == "first" else (0, 4 * mistaken)
    program = f"""
from tests.csrc import calls
from tests.csrc.calls import ffi, lib
from tests.csrc.guard_pages import GuardPages
pointer = lambda array: ffi.cast("char *", calls.pointer(array))
array = GuardPages({end!r}).array((250,), "f4")
lib.probe_read(pointer(array) - {before}, 1000 + {beyond}, 1, 1)
"""
    # The address sanitizer would report the fault that is wanted here.
    options = os.environ.get("ASAN_OPTIONS", "") + ":handle_segv=0"
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, timeout=100,
        env=os.environ | {"ASAN_OPTIONS": options.strip(":")},
    )  # fmt: skip
    assert run.returncode == (-signal.SIGSEGV if mistaken else 0), run.stderr


@ends
def test_arrays_lie_flush_against_their_page_and_come_back_when_released(
    end: str,
) -> None:
    memory: Memory = GuardPages(end)
    array = memory.array((3, 5), f32)
    edge = array.ctypes.data if end == "first" else array.ctypes.data + array.nbytes
    assert edge % os.sysconf("SC_PAGE_SIZE") == 0
    assert memory.lengths == {array.ctypes.data: 60}
    memory.release()
    assert memory.array((15,), f32).ctypes.data == array.ctypes.data


@ends
def test_a_pointer_to_memory_that_is_not_watched_is_refused(end: str) -> None:
    memory = GuardPages(end)
    inside = memory.array((4, 4), f32)
    outside = normal((4, 4), f32)
    with watching(memory, Note(None)) as watched:
        calls.softmax(inside, memory.array((4, 4), f32))
        with pytest.raises(AssertionError, match="softmax: x points to memory"):
            calls.softmax(outside, inside)
        with pytest.raises(AssertionError, match="linear: data points to memory"):
            calls.linear(inside, [outside], [memory.array((4, 4), f32)])
        with pytest.raises(AssertionError, match="softmax: out points to memory"):
            calls.softmax(inside, outside)
    assert watched.calls["softmax"] == 1
    assert calls.lib is lib


def test_the_call_that_ended_a_program_is_noted(tmp_path: Path) -> None:
    memory = GuardPages("last")
    with watching(memory, Note(tmp_path / "note")):
        calls.softmax(memory.array((3, 7), f32), memory.array((3, 7), f32))
    note = (tmp_path / "note").read_text().strip()
    kind = lib.TYPE_FLOAT32
    assert note == f"softmax {{'rows': 3, 'n': 7, 'x_type': {kind}, 'out_type': {kind}}}"
