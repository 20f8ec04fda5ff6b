"""The machine's limits ("roofs"): how fast it reads memory, how fast it multiplies and adds.

What an engine reaches says little without them, and on a shared machine they change from minute to
minute: so they are measured in the same run as what is compared with them.
"""

import statistics
import time
from collections.abc import Iterable

from . import native
from .kernel_settings import available_isas, build_info, set_isa
from .tensor import Tensor

STREAMS = (1, 2, 4, 8)
_SAMPLE_BYTES = 1 << 28  # far more than a cache holds
_ROUNDS = 10_000_000


def read_rate(tensors: Iterable[Tensor], isa: str, streams: int) -> float:
    """Read the bytes of tensors once, where they lie, by all threads.

    Args:
        tensors: contiguous; they are read one after the other.
        isa: instruction set that reads, one of `available_isas()`.
        streams: places that a thread reads from in turn, one of `STREAMS`.

    Returns:
        Bytes per second.
    """
    before, nbytes = str(build_info()["isa"]), 0
    set_isa(isa)
    try:
        start = time.perf_counter()
        for tensor in tensors:
            native.probe_read(tensor, streams)
            nbytes += tensor.nbytes
        return nbytes / (time.perf_counter() - start)
    finally:
        set_isa(before)


def fastest_reading(tensors: Iterable[Tensor], passes: int = 2) -> tuple[str, int]:
    """Find how this machine reads fastest.

    Processors differ: one stream of wide loads is the fastest on some, four are on others. The
    kernels choose the same way, so the limit is that of the best.

    Args:
        tensors: what is read; no more of them than a sample.
        passes: over the sample, for each way; the best counts.

    Returns:
        The instruction set and the number of streams.
    """
    sample: list[Tensor] = []
    for tensor in tensors:
        sample.append(tensor)
        if sum(one.nbytes for one in sample) >= _SAMPLE_BYTES:
            break
    ways = [(isa, streams) for isa in available_isas() for streams in STREAMS]
    best = dict.fromkeys(ways, 0.0)
    for _ in range(passes):  # in turns: what disturbs a moment then disturbs all
        for way in ways:
            best[way] = max(best[way], read_rate(sample, *way))
    return max(ways, key=best.__getitem__)


def multiply_add_rate(dtype: str, rounds: int = _ROUNDS, runs: int = 5) -> float | None:
    """Return the multiplications and additions per second of products in registers.

    Args:
        dtype: bfloat16 or float32; operands of the products, which are summed in float32.
        rounds: steps of each of the sums.
        runs: the median of them counts.

    Returns:
        The rate of the instruction set in use, all threads together; None where it has no vectors.
    """
    rates = []
    for _ in range(runs):
        start = time.perf_counter()
        operations = native.probe_multiply_add(dtype, rounds)
        rates.append(operations / (time.perf_counter() - start))
    return statistics.median(rates) or None
