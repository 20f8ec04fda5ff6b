"""Times products with quantized weights of any row length against the next multiple of
512.

    python -m tests.bench.bench_widths [--formats int8_block q4_0 nf4 q4_k] [--tokens 1 4 22]
        [--widths 544 576 640 768 896 960 1280 4864 8960 11008] [--mib 64] [--rounds 7]

Rows of quantized weights are multiplied in units of 256 or 512 elements, so the end of a
row may cost more than its share. Results are verified first, against the definition of
the product. Then the widths are timed in turn, with weights of `--mib` MiB on one thread,
and the time per weight is divided by that of the next multiple of 512 in the same round.
The last line is JSON.
"""

import json
import time
from collections.abc import Callable

import numpy as np

from src import ml
from tests.csrc import calls
from tests.csrc.operands import bf16, f32, normal
from tests.csrc.quantized_operands import integer_products, quantized

from .processes import machine
from .shapes import read_options

GGML = {dtype.name: dtype for dtype in ml.GGML_DTYPES.values()}
FORMATS = {"nf4": ml.nf4, "int8_block": ml.int8_block, **GGML}
UNIT = 512
VERIFIED_ROWS = 5
SHORTEST = 0.002  # seconds of one timing


def verify(name: str, width: int, tokens: int) -> None:
    """Stop if a product differs from its definition."""
    x = normal((tokens, width), bf16)
    weight = quantized((VERIFIED_ROWS, width), FORMATS[name], False)
    out = np.zeros((tokens, VERIFIED_ROWS), f32)
    calls.linear(x, [weight], [out])
    if not np.array_equal(out, integer_products(x, weight)):
        raise SystemExit(
            f"{name} is wrong at {width} elements, {tokens} rows: nothing is timed"
        )


def timer(name: str, width: int, tokens: int, mib: int) -> Callable[[], float]:
    """Return a function that gives the nanoseconds of a product per weight."""
    dtype = FORMATS[name]
    rows = max(8, (mib << 20) // (width * 5 // 8) // 8 * 8)
    x = normal((tokens, width), bf16)
    out = np.zeros((tokens, rows), f32)
    weight = quantized((rows, width), dtype, False)

    def nanoseconds() -> float:
        count = 0
        start = time.perf_counter()
        while (elapsed := time.perf_counter() - start) < SHORTEST or count == 0:
            calls.linear(x, [weight], [out])
            count += 1
        return 1e9 * elapsed / (count * rows * width)

    return nanoseconds


def main() -> None:
    options = read_options(
        __doc__, {"formats": FORMATS}, formats=["int8_block", "q4_0", "nf4", "q4_k"],
        tokens=[1, 4, 22], widths=[544, 576, 640, 768, 896, 960, 1280, 4864, 8960, 11008],
        mib=64, rounds=7, isa=str,
    )  # fmt: skip
    if options.isa:
        calls.set_isa(options.isa)
    calls.set_num_threads(1)
    lines = []
    for name in options.formats:
        for tokens in options.tokens:
            for width in options.widths:
                if width % FORMATS[name].block_size:
                    continue
                whole = -(-width // UNIT) * UNIT
                verify(name, width, tokens)
                times = [
                    timer(name, each, tokens, options.mib) for each in (width, whole)
                ]
                ratios = []
                for _ in range(options.rounds):
                    measured = [nanoseconds() for nanoseconds in times]
                    ratios.append(measured[0] / measured[1])
                ratio = float(np.median(ratios))
                print(
                    f"{name:10s} {tokens:3d} rows of x {width:6d} / {whole}: {ratio:.2f}"
                )
                lines.append(
                    {"format": name, "rows": tokens, "width": width, "ratios": ratios}
                )
    print(
        json.dumps(
            {"machine": machine(), "isa": calls.build_info()["isa"], "lines": lines}
        )
    )


if __name__ == "__main__":
    main()
