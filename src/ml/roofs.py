"""The machine's limits ("roofs"): how fast it reads memory, how fast it multiplies and adds.

What an engine reaches says little without them, and on a shared machine they change from minute to
minute: so they are measured in the same run as what is compared with them.
"""

import statistics
import time
from collections.abc import Iterable, Sequence

from . import native
from .kernel_settings import available_isas, build_info, set_isa
from .tensor import Tensor

STREAMS = (1, 2, 4, 8)
_ROUNDS = 10_000_000


def read_seconds(tensors: Iterable[Tensor], streams: int) -> float:
    """Times one pass over the bytes of tensors, where they lie.

    Args:
        tensors: contiguous; they are read one after the other, each by all threads.
        streams: places that a thread reads from in turn, one of `STREAMS`.
    """
    start = time.perf_counter()
    for tensor in tensors:
        native.probe_read(tensor, streams)
    return time.perf_counter() - start


def fastest_reading(tensors: Sequence[Tensor], passes: int = 2) -> tuple[str, int]:
    """Finds how this machine reads fastest.

    Processors differ: one stream of wide loads is the fastest on some, four are on others. The
    kernels choose the same way, so the limit is that of the best.

    Args:
        tensors: what is read.
        passes: over all of it, for each way.

    Returns:
        The instruction set and the number of streams.
    """
    before = str(build_info()["isa"])
    seconds: dict[tuple[str, int], float] = {}
    try:
        for isa in available_isas():
            set_isa(isa)
            for streams in STREAMS:
                times = [read_seconds(tensors, streams) for _ in range(passes)]
                seconds[isa, streams] = min(times)
    finally:
        set_isa(before)
    return min(seconds, key=seconds.__getitem__)


def multiply_add_rate(dtype: str, rounds: int = _ROUNDS, runs: int = 3) -> float | None:
    """Returns the multiplications and additions per second of products in registers.

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
