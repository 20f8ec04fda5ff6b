"""Prints a digest of what each kernel and each model computes: the same on every
processor.

    python -m tests.csrc.run_digests [path ...]

One line for each kernel and combination of types and formats, and for each format of the
bundled model and each tiny model: what another processor has to print too. Ends with 0 if
the paths that are asked for, or all that the machine has, give the same bits.
"""

import hashlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from src import ml
from src.model import InferenceContext, LlamaTransformer, load_model
from src.model.quantization import QUANTIZATIONS
from tests.model.tiny import CONFIGS, transformer

from . import calls
from .guard_cases import CASES, Case, sizes_of
from .operands import Array, bits

THREADS = 3


class Kept(list[Array]):
    """Arrays of zeros, kept until they are taken back."""

    release = list.clear

    def array(self, shape: tuple[int, ...], dtype: Any) -> Array:
        self.append(np.zeros(shape, dtype))
        return self[-1]


def kernel_digest(case: Case, variant: tuple[Any, ...]) -> str:
    """Make calls of one kernel, and return the digest of all operands and results."""
    memory = Kept()
    found = hashlib.sha256()
    for sizes in [*sizes_of(case, "one"), *case.long]:
        case.run(memory, *variant, *case.fitting(variant, sizes))
        for array in memory:
            found.update(array.tobytes() if array.dtype.kind in "iuc" else bits(array))
        memory.release()
    return found.hexdigest()


def model_digest(model: LlamaTransformer) -> str:
    """Run a prompt, a chunk and a token, fused and eager; return the digest of all
    logits.
    """
    found = hashlib.sha256()
    ids = np.arange(5, 45, dtype=np.int32)
    for attention in ("fused", "eager"):
        context = InferenceContext(model.args, 48, attention)
        for start, end in ((0, 33), (33, 39), (39, 40)):
            logits = model.forward(context, ids[start:end], start, all_positions=True)
            found.update(logits.numpy().tobytes())
    return found.hexdigest()


def words_of(kind: Any) -> str:
    if isinstance(kind, tuple):
        return " ".join(map(words_of, kind))
    return str(getattr(kind, "__name__", kind))


def digests() -> Iterator[tuple[str, Callable[[], str]]]:
    """Yield the name of each digest, and what computes it."""
    for name, case in CASES.items():
        for variant in case.variants:
            yield f"{name} {words_of(variant)}", partial(kernel_digest, case, variant)
    for config in CONFIGS:
        for dtype in (ml.float32, ml.bfloat16):
            yield (
                f"{config.name} {dtype}",
                partial(model_digest, transformer(config, dtype)),
            )
    for quantize in (None, *QUANTIZATIONS):
        model = load_model(quantize=quantize)
        yield (
            f"bundled {quantize or model.args.dtype}",
            partial(model_digest, model.transformer),
        )
    for quantize in QUANTIZATIONS:
        rounded = load_model(quantize=quantize, activations="int8")
        yield (
            f"bundled {quantize} int8 activations",
            partial(model_digest, rounded.transformer),
        )
    tensors = load_model().checkpoint.tensors
    wide = {key: weight.to(ml.float32) for key, weight in tensors.items()}
    args = replace(model.args, dtype=ml.float32)
    yield "bundled float32", partial(model_digest, LlamaTransformer(args, wide))


def main() -> int:
    """Print the digests; return 1 if paths differ."""
    calls.set_num_threads(THREADS)
    isas = sys.argv[1:] or calls.available_isas()
    different = 0
    for name, digest in digests():
        found: dict[str, str] = {}
        for isa in isas:
            calls.set_isa(isa)
            found.setdefault(digest(), isa)
        print(name, *found)
        different += len(found) > 1
    print(f"digests: {different} differ on {', '.join(isas)}", file=sys.stderr)
    return int(different > 0)


if __name__ == "__main__":
    sys.exit(main())
