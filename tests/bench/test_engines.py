"""The benchmark's models, and the check that stands before every timing."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from src.model import load_model
from tests.bench.counting import counted_calls
from tests.bench.engines import (
    ENGINES,
    LLAMA_CPP,
    TRANSFORMERS,
    Ours,
    Setup,
    cache_tensors,
)
from tests.bench.reference import BOUND, reference_logits, relative_error
from tests.bench.shapes import find_checkpoint, find_gguf

IDS = np.random.default_rng(3).integers(0, 512, 40).tolist()
POSITIONS = 64


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return find_checkpoint("tiny", None, tmp_path_factory.mktemp("bench"))


@pytest.fixture(scope="module")
def reference(directory: Path) -> Any:
    return reference_logits(directory, IDS, [21, 39])


@pytest.fixture
def ours(directory: Path) -> Ours:
    return Ours(Setup(directory, 1, POSITIONS))


def test_a_random_checkpoint_is_written_once_and_has_a_tokenizer(directory: Path) -> None:
    written = (directory / "consolidated.00.pth").stat().st_mtime_ns
    assert find_checkpoint("tiny", None, directory.parent) == directory
    assert (directory / "consolidated.00.pth").stat().st_mtime_ns == written
    assert load_model(directory).tokenizer is not None


def test_our_logits_are_the_reference_s(ours: Ours, reference: Any) -> None:
    assert relative_error(ours.logits(IDS[:22], []), reference[0]) <= BOUND
    assert relative_error(ours.logits([], IDS), reference[1]) <= BOUND
    assert relative_error(ours.logits(IDS[:22], IDS[22:]), reference[1]) <= BOUND


def test_the_bound_refuses_another_position_or_rotation(
    ours: Ours, reference: Any
) -> None:
    """The check can fail: by one token too few, and by q and k of one layer that are
    swapped.
    """
    assert relative_error(ours.logits(IDS[:21], []), reference[0]) > 10 * BOUND
    attention = ours.model.transformer.layers[0].attention
    rows = attention.wq.numpy().copy()
    halves = np.concatenate([rows[0::2], rows[1::2]])
    attention.wq = type(attention.wq).from_numpy(halves)
    assert relative_error(ours.logits(IDS[:22], []), reference[0]) > BOUND


def test_rates_are_positive_and_a_filled_cache_holds_numbers(ours: Ours) -> None:
    assert ours.prefill_rate(IDS[:5]) > 0
    assert ours.decode_rate(IDS[:5]) > 0
    assert ours.rows_rate(4, 2) > 0
    assert ours.chunk_rate_at(30, IDS[:5]) > 0
    assert ours.decode_rate_at(50, IDS[:5]) > 0
    assert ours.context.length == 55
    assert np.isfinite(ours.run([1])).all()
    assert all(tensor.numpy().any() for tensor in cache_tensors(ours.context))


def test_calls_are_counted_and_the_library_comes_back(ours: Ours) -> None:
    from src.ml import kernels

    lib = kernels.lib
    with counted_calls() as calls:
        ours.run([1])
        assert kernels.lib is not lib
    assert kernels.lib is lib
    # 13 kernels and 5 sizes of scratch in each of 5 layers; rows of the embedding table,
    # to float32, norm, and the size of scratch and the product of logits.
    assert calls.count == 18 * 5 + 5
    assert ours.calls(IDS[:3])["calls_per_step"] == calls.count
    found = ours.calls(IDS[:3])
    assert 0 < found["share_outside"] < 1


@pytest.mark.slow
@pytest.mark.oracle
@pytest.mark.parametrize(
    ("name", "module"), [(TRANSFORMERS, "torch"), (LLAMA_CPP, "llama_cpp")]
)
def test_other_engines_agree(
    directory: Path, reference: Any, name: str, module: str
) -> None:
    pytest.importorskip(module, reason="needs the bench extra")
    gguf = find_gguf(directory) if name == LLAMA_CPP else None
    engine = ENGINES[name](Setup(directory, 1, POSITIONS, gguf))
    assert relative_error(engine.logits(IDS[:22], []), reference[0]) <= BOUND
    assert relative_error(engine.logits([], IDS), reference[1]) <= BOUND
    assert engine.prefill_rate(IDS) > 0
    assert engine.decode_rate(IDS[:3]) > 0
    assert engine.facts()
