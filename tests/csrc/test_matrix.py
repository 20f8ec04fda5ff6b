"""Products in tile registers (AMX): the bits of the set without them, in every shape, and
a process that is refused the registers.
"""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from . import calls
from .operands import Array, bf16, bits, normal, run_linear
from .quantized_operands import (
    EVERY_FORMAT,
    Format,
    every_format,
    operands,
    quantized,
    whole_blocks,
    with_scales,
)

SETS = ("avx512bf16", "avx512amx")
# Tokens and formats of products that run at the same time.
CASES = [(20 + 3 * number, kind) for number, kind in enumerate(EVERY_FORMAT)]
REPOSITORY = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(
    SETS[1] not in calls.available_isas(),
    reason="this machine, system or build has no AMX: NOTHING IS CHECKED",
)


def on_both_sets(x: Array, weight: Any) -> tuple[bytes, bytes]:
    """Return the bits of a product without tile registers, and with them."""
    results = []
    for isa in SETS:
        calls.set_isa(isa)
        results.append(bits(run_linear(x, weight)))
    return results[0], results[1]


@every_format
def test_any_number_of_tokens_and_rows_gives_the_same_bits(kind: Format) -> None:
    """Take each number of tokens and many of rows, of whole and short K blocks."""
    columns = (32, 64, 544, 992, 1024, 2592)
    rows = (1, 15, 16, 17, 31, 32, 33, 64, 65, 130, 200)
    for tokens in range(5, 71):
        shape = (tokens, columns[tokens % len(columns)], rows[tokens % len(rows)])
        plain, in_tiles = on_both_sets(*operands(shape, bf16, kind))
        assert plain == in_tiles, shape


@every_format
def test_long_rows_and_many_tokens_give_the_same_bits(kind: Format) -> None:
    for shape in ((130, 8192, 70), (200, 4352, 33), (23, 18944, 40)):
        plain, in_tiles = on_both_sets(*operands(shape, bf16, kind))
        assert plain == in_tiles, shape


@every_format
def test_numbers_of_any_size_give_the_same_bits(kind: Format) -> None:
    """Give groups scales from 2^-126 up, tokens that are not finite, and zeros."""
    x, weight = operands((40, 1088, 35), bf16, kind)
    exponents = normal((40, x.shape[1] // 32), np.dtype(np.float32), seed=5) * 40
    scales = np.repeat(np.exp2(np.clip(exponents, -130, 120)), 32, axis=1)
    tokens = [x, x * scales.astype(bf16), x * np.exp2(np.float32(-100)).astype(bf16)]
    tokens.append(x * np.exp2(np.float32(100)).astype(bf16))
    some_zeros = x.copy()
    some_zeros[:, 32:96] = 0
    some_zeros[7] = -0.0
    some_zeros[9, ::2] = 0
    not_finite = x.copy()
    not_finite[3, 5] = np.nan
    not_finite[4, 40] = np.inf
    not_finite[39, -1] = -np.inf
    for given in (*tokens, some_zeros, not_finite):
        plain, in_tiles = on_both_sets(given, weight)
        assert plain == in_tiles


@every_format
def test_scales_of_any_size_give_the_same_bits(kind: Format) -> None:
    weight = quantized((35, whole_blocks(kind[0], 1088)), *kind)
    x = normal((40, weight.shape[1]), bf16)
    for scale in (0.0, 2.0**-24, 65504.0, np.inf, np.nan):
        plain, in_tiles = on_both_sets(x, with_scales(weight, np.array([scale])))
        assert plain == in_tiles, scale


@every_format
def test_any_number_of_threads_gives_the_same_bits(kind: Format) -> None:
    x, weight = operands((50, 1088, 300), bf16, kind)
    calls.set_isa(SETS[1])
    results = set()
    for threads in (1, 2, 3, 7):
        calls.set_num_threads(threads)
        results.add(bits(run_linear(x, weight)))
    assert len(results) == 1


def test_many_python_threads_multiply_at_once() -> None:
    cases = [operands((tokens, 1024, 96), bf16, kind) for tokens, kind in CASES]
    expected = [on_both_sets(*case)[0] for case in cases]
    calls.set_isa(SETS[1])
    with ThreadPoolExecutor(8) as pool:
        for _ in range(20):
            results = pool.map(lambda case: bits(run_linear(*case)), cases)
            assert [*results] == expected


def run(program: str) -> str:
    """Run a program in a process of its own; return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + program],
        env=os.environ | {"PYTHONFAULTHANDLER": ""},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


PROGRAM = """
import ctypes, mmap, os
libc = ctypes.CDLL(None, use_errno=True)
class Stack(ctypes.Structure):
    _fields_ = [("sp", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]
def use_signal_stack(size):
    memory = ctypes.create_string_buffer(size)
    assert libc.sigaltstack(ctypes.byref(Stack(ctypes.addressof(memory), 0, size)), None) == 0
    return memory
def product():
    import numpy as np
    from src import ml
    random = np.random.default_rng(0)
    x = ml.Tensor.from_numpy(random.normal(size=(40, 1024)).astype(np.float32))
    weight = ml.Tensor.from_numpy(random.normal(size=(96, 1024)).astype(np.float32))
    q4_0 = ml.quantize(weight, ml.GGML_DTYPES[2])
    return ml.linear_transformation(x.to(ml.bfloat16), q4_0).bits().tobytes()
def isa():
    from src import ml
    return ml.build_info()["isa"]
"""


def test_a_process_that_is_refused_tile_registers_goes_without_them() -> None:
    """Linux refuses them where a signal stack has no room for them."""
    same = "import hashlib; print(isa(), hashlib.sha256(product()).hexdigest())"
    refused = run("memory = use_signal_stack(8192)\n" + same).split()
    given = run(same).split()
    assert (refused[0], given[0]) == SETS
    assert refused[1] == given[1]


def test_no_thread_keeps_tile_registers_after_a_product() -> None:
    """xgetbv(1) lists the parts of the processor's state that are in use."""
    program = """
code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
code.write(b"\\xb9\\x01\\x00\\x00\\x00\\x0f\\x01\\xd0\\xc3")  # mov ecx, 1; xgetbv; ret
address = ctypes.addressof(ctypes.c_char.from_buffer(code))
in_use = ctypes.CFUNCTYPE(ctypes.c_uint32)(address)
product()
print(isa(), in_use() >> 18 & 1, in_use() >> 1 & 1)
"""
    assert run(program) == f"{SETS[1]} 0 1\n"


def test_a_forked_child_multiplies_in_tile_registers_too() -> None:
    program = """
expected = product()
child = os.fork()
if child == 0:
    os._exit(0 if product() == expected and isa() == "avx512amx" else 9)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), product() == expected)
"""
    assert run(program) == "0 True\n"
