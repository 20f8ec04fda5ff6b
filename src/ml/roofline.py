"""Measure this machine's roofline: its memory read rate and its multiply-add rate.

Inference speed is hard to interpret without these rates. On a shared machine they change
from minute to minute, so they are measured in the same run as the engine.
"""

import statistics
import time
from collections.abc import Iterable

from .dtype import dtype_named
from .kernels import available_isas, build_info, checked_threads, ffi, lib, set_isa
from .tensor import Tensor

STREAMS = tuple(count for count in (1, 2, 4, 8) if count <= lib.PROBE_STREAMS)
_SAMPLE_BYTES = 1 << 28  # much larger than any CPU cache
_ROUNDS = 10_000_000


def read_rate(tensors: Iterable[Tensor], isa: str, streams: int) -> float:
    """Read tensors once with all threads, and return the rate in bytes per second.

    Each thread alternates between `streams` separate read positions. `STREAMS` lists the
    possible numbers.
    """
    before = str(build_info()["isa"])
    nbytes = 0
    set_isa(isa)
    try:
        start = time.perf_counter()
        for tensor in tensors:
            tensor = tensor.contiguous()
            lib.probe_read(tensor._pointer, tensor.nbytes, streams, checked_threads())
            nbytes += tensor.nbytes
        return nbytes / (time.perf_counter() - start)
    finally:
        set_isa(before)


def fastest_reading(tensors: Iterable[Tensor], passes: int = 2) -> tuple[str, int]:
    """Return the instruction set and the number of streams that read memory fastest.

    Processors differ: on some, one stream of wide loads is the fastest, and on others
    four streams are. The fastest combination is the upper limit for the kernels. Only a
    sample of the tensors is read.
    """
    sample: list[Tensor] = []
    for tensor in tensors:
        sample.append(tensor)
        if sum(each.nbytes for each in sample) >= _SAMPLE_BYTES:
            break
    ways = [(isa, streams) for isa in available_isas() for streams in STREAMS]
    best = dict.fromkeys(ways, 0.0)
    for _ in range(passes):  # interleaved, so that a disturbance affects every way
        for way in ways:
            best[way] = max(best[way], read_rate(sample, *way))
    return max(ways, key=best.__getitem__)


def multiply_add_rate(dtype: str, rounds: int = _ROUNDS, runs: int = 5) -> float | None:
    """Return how many multiplications and additions all threads execute per second.

    All operands stay in registers. Products of "bfloat16" or "float32" values are
    accumulated in float32 for `rounds` steps. The result is the median of all runs, or
    None if the selected instruction set does not have vector instructions.
    """
    rates = []
    result = ffi.new("float *")
    code = dtype_named("multiply_add_rate", dtype).code
    for _ in range(runs):
        start = time.perf_counter()
        operations = lib.probe_multiply_add(result, rounds, code, checked_threads())
        rates.append(operations / (time.perf_counter() - start))
    return statistics.median(rates) or None
