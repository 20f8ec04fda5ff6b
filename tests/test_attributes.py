"""No attribute of a public object lets a kernel leave the memory of a tensor or a
cache.
"""

import copy
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from src import ml
from src.model import InferenceContext, load_model
from tests.support.attribute_trials import public_attributes

ROOT = Path(__file__).resolve().parent.parent
# The classes that hold memory for kernels, or say where in a memory they read and write.
MEMORY = (
    "KeyValueCache",
    "Spans",
    "Tensor",
    "QuantizedTensor",
    "NestedScales",
    "ExpertWeights",
    "InferenceContext",
    "CacheMemory",
    "BatchContext",
)


def run_trials(*names: str) -> None:
    program = [sys.executable, "-m", "tests.support.attribute_trials", *names]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(done.stdout.splitlines()) >= len(names or "x" * 40)


def test_no_attribute_of_an_object_with_memory_crashes_a_kernel() -> None:
    run_trials(*MEMORY)


@pytest.mark.slow
def test_no_attribute_of_any_public_object_crashes_a_kernel() -> None:
    run_trials()


READ_ONLY = {
    "KeyValueCache": lambda: ml.KeyValueCache(300, 2, 8, "float32"),
    "Spans": lambda: ml.Spans([(0, 2, [0]), (4, 1, [1])]),
    "Tensor": lambda: ml.ones(2, 3),
    "QuantizedTensor": lambda: ml.quantize(ml.ones(4, 64), ml.nf4, double=True),
    "NestedScales": lambda: ml.quantize(ml.ones(4, 64), ml.nf4, double=True).nested,
    "DType": lambda: ml.float32,
    "BlockDType": lambda: ml.nf4,
}


@pytest.mark.parametrize("name", READ_ONLY)
def test_attributes_of_the_tensor_library_are_neither_set_nor_deleted(name: str) -> None:
    subject = READ_ONLY[name]()
    attributes = public_attributes(subject)
    assert len(attributes) >= 3
    for attribute in attributes:
        # TypeError: CPython's own for a property of a frozen dataclass with slots.
        with pytest.raises((AttributeError, TypeError)):
            setattr(subject, attribute, 10**9)
        with pytest.raises((AttributeError, TypeError)):
            delattr(subject, attribute)
    assert attributes == public_attributes(subject)


@pytest.mark.parametrize("name", ["caches", "length", "attention", "rotations", "args"])
def test_no_attribute_of_a_context_is_deleted(name: str) -> None:
    context = InferenceContext(load_model().args, 16)
    with pytest.raises(AttributeError, match=f"^property '{name}' of .* has no deleter$"):
        delattr(context, name)


def test_a_refused_second_construction_changes_nothing() -> None:
    x = ml.Tensor.from_numpy(np.arange(6, dtype=np.float32))
    q = ml.quantize(ml.ones(2, 64), ml.nf4)
    before = q.dequantize().tolist()
    with pytest.raises(ml.TensorError):
        x.__init__(x.storage, (10**9,), (4,), ml.float32)
    with pytest.raises(ml.ShapeError):
        q.__init__(ml.nf4, (10**6, 64), q.codes, q.scales)
    assert (x.shape, x.tolist()) == ((6,), [0, 1, 2, 3, 4, 5])
    assert (q.shape, q.dequantize().tolist()) == ((2, 64), before)


def _pickled(x: Any) -> Any:
    return pickle.loads(pickle.dumps(x))


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, _pickled])
def test_a_copy_of_a_cache_and_of_spans_is_usable_and_equal(copied: Any) -> None:
    spans = ml.Spans([(0, 2, [1]), (0, 1, [0])])
    cache = ml.KeyValueCache(512, 2, 8, ml.bfloat16)
    x = ml.randn(3, 2, 8, dtype="bfloat16")
    ml.write_cache(cache, spans, x, x)
    twin = copied(cache)
    same = copied(spans)
    assert (same.spans, same.parts, same.capacity) == (
        spans.spans,
        spans.parts,
        spans.capacity,
    )
    expected = ml.attention(x, cache, spans).tolist()
    assert ml.attention(x, twin, same).tolist() == expected
    zeros = ml.zeros(3, 2, 8, dtype="bfloat16")
    ml.write_cache(twin, same, zeros, zeros)  # its memory is its own
    assert ml.attention(x, cache, spans).tolist() == expected
