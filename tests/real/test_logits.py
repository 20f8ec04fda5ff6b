"""The logits of a trained model: near those of float32, and the recorded bits wherever
they run.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from src.ml import kernels
from src.model import InferenceContext, Model
from tests.real.float32 import divergence, perplexity
from tests.real.recorded import ROWS, all_logits, hashes_of, recorded
from tests.support import llama_cpp

pytestmark = pytest.mark.real

MOST_DIVERGENCE = 3e-4
MOST_PERPLEXITY_ERROR = 0.001
# Tokens that an instruction set runs: plain C takes minutes for all of them.
TOKENS_OF_SET = {"portable": ROWS}
NAMES = (
    "portable",
    "avx2",
    "avx512",
    "avx512bf16",
    "avx512amx",
    "neon",
    "neondot",
    "neonbf16",
)


def test_logits_are_near_those_of_float32(
    logits: Any, exact: Any, ids: list[int], figures: list[str]
) -> None:
    mean = divergence(logits, exact)
    ours = perplexity(logits, ids)
    theirs = perplexity(exact, ids)
    error = abs(ours / theirs - 1)
    figures.append(
        f"{len(ids)} tokens beside float32: mean KL {mean:.2e}, at most "
        f"{MOST_DIVERGENCE:.0e}; perplexity {ours:.4f} beside {theirs:.4f}, {error:.3%}, "
        f"at most {MOST_PERPLEXITY_ERROR:.1%}"
    )
    assert mean <= MOST_DIVERGENCE
    assert error <= MOST_PERPLEXITY_ERROR


def test_the_divergence_of_a_small_error_is_beyond_the_bound(exact: Any) -> None:
    rows = exact[:ROWS]
    noise = np.random.default_rng(3).standard_normal(rows.shape).astype(np.float32)
    assert divergence(rows, rows) == 0
    assert divergence(rows + 0.05 * noise, rows) > MOST_DIVERGENCE


def test_logits_are_nearer_to_float32_than_those_of_llama_cpp(
    smollm2: Path, logits: Any, exact: Any, ids: list[int], figures: list[str]
) -> None:
    llama_cpp.needed()
    with llama_cpp.LlamaCpp(smollm2, 4 * ROWS) as other:
        theirs = divergence(other.run_each(ids[: 4 * ROWS]), exact[: 4 * ROWS])
    ours = divergence(logits[: 4 * ROWS], exact[: 4 * ROWS])
    figures.append(
        f"{4 * ROWS} tokens beside float32: mean KL {ours:.2e}, of llama.cpp {theirs:.2e}"
    )
    assert ours < theirs


@pytest.fixture
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each instruction set that this machine has."""
    if request.param not in kernels.available_isas():
        pytest.skip(f"this machine has no {request.param}")
    before = kernels.build_info()["isa"]
    kernels.set_isa(request.param)
    yield request.param
    kernels.set_isa(before)


@pytest.mark.parametrize("isa", NAMES, indirect=True)
def test_logits_have_the_recorded_bits_on_each_instruction_set(
    isa: str, model: Model, ids: list[int], figures: list[str]
) -> None:
    some = ids[: TOKENS_OF_SET.get(isa, len(ids))]
    assert set(kernels.available_isas()) <= {*NAMES}
    found = hashes_of(all_logits(model.transformer, some))
    expected = recorded()["logits_sha256"][: len(found)]
    equal = sum(x == y for x, y in zip(found, expected, strict=True))
    figures.append(
        f"{isa}: logits of {len(some)} tokens: {equal} of {len(found)} hashes equal"
    )
    assert found == expected


@pytest.mark.parametrize("chunks", [(1, 2, 3, 44), (67, 33), (100,) * 3])
def test_chunks_of_the_text_give_the_recorded_bits(
    chunks: tuple[int, ...], model: Model, ids: list[int]
) -> None:
    context = InferenceContext(model.args, sum(chunks))
    parts = []
    for size in chunks:
        chunk = ids[context.length : context.length + size]
        parts.append(
            model.transformer.forward(
                context, chunk, context.length, all_positions=True
            ).numpy()
        )
    found = hashes_of(np.concatenate(parts))
    assert found == recorded()["logits_sha256"][: len(found)]
