"""The roofline of this machine: its rates of reading memory and of multiply-adds.

The speed of an engine means little without these rates, and on a shared machine they
change from minute to minute. So they are measured in the same run as the engine.
"""

import statistics
import time
from collections.abc import Iterable

from .dtype import dtype_named
from .kernels import available_isas, build_info, checked_threads, ffi, lib, set_isa
from .tensor import Tensor

STREAMS = tuple(count for count in (1, 2, 4, 8) if count <= lib.PROBE_STREAMS)
_SAMPLE_BYTES = 1 << 28  # far more than a cache holds
_ROUNDS = 10_000_000


def read_rate(tensors: Iterable[Tensor], isa: str, streams: int) -> float:
    """Read the bytes of contiguous tensors once, by all threads; return bytes per second.

    Each thread reads from one of `STREAMS` places in turn.
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
    """Return the instruction set and number of streams of the fastest reads.

    Processors differ: one stream of wide loads is the fastest on some, four are on
    others. The kernels choose the same way, so the fastest way is the limit. At most one
    sample is read.
    """
    sample: list[Tensor] = []
    for tensor in tensors:
        sample.append(tensor)
        if sum(each.nbytes for each in sample) >= _SAMPLE_BYTES:
            break
    ways = [(isa, streams) for isa in available_isas() for streams in STREAMS]
    best = dict.fromkeys(ways, 0.0)
    for _ in range(passes):  # interleaved, so that a disturbance affects all ways
        for way in ways:
            best[way] = max(best[way], read_rate(sample, *way))
    return max(ways, key=best.__getitem__)


def multiply_add_rate(dtype: str, rounds: int = _ROUNDS, runs: int = 5) -> float | None:
    """Return the multiplications and additions per second in registers, of all threads.

    Products of "bfloat16" or "float32" are summed in float32, in sums of `rounds` steps.
    The result is the median of the runs, or None if the instruction set in use has no
    vectors.
    """
    rates = []
    result = ffi.new("float *")
    code = dtype_named("multiply_add_rate", dtype).code
    for _ in range(runs):
        start = time.perf_counter()
        operations = lib.probe_multiply_add(result, rounds, code, checked_threads())
        rates.append(operations / (time.perf_counter() - start))
    return statistics.median(rates) or None
