import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from src import ml
from src.ml import kernels
from src.model import (
    InferenceContext,
    LlamaTransformer,
    ModelError,
    TokenIdError,
    token_tensor,
)
from src.model.llama import causal_mask
from tests.model.test_rope import reference_frequencies
from tests.model.tiny import (
    CONFIGS,
    GROUPED,
    Tiny,
    Weights,
    rounded,
    token_ids,
    transformer,
    weights,
)

WIDE = Tiny("wide", 512, 1, 8, 2, 1400, 2100, theta=500000.0, scaling=8.0)

DTYPES = pytest.mark.parametrize("dtype", [ml.bfloat16, ml.float32], ids=str)


def reference_logits(
    config: Tiny, weights: Weights, ids: list[int]
) -> npt.NDArray[np.float64]:
    """Computes the network in float64, written without looking at how `ml` does it."""
    w = {name: weight.astype(np.float64) for name, weight in weights.items()}
    T = len(ids)
    H = config.heads
    K = config.kv_heads
    h = config.head_dim
    turn = np.exp(1j * np.arange(T)[:, None] * np.array(reference_frequencies(config)))[
        :, None
    ]

    def norm(x: npt.NDArray[np.float64], name: str) -> npt.NDArray[np.float64]:
        return (
            x
            / np.sqrt((x * x).mean(-1, keepdims=True) + config.eps)
            * w[f"{name}.weight"]
        )

    def turned(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        pairs = (x[..., 0::2] + 1j * x[..., 1::2]) * turn
        return np.stack([pairs.real, pairs.imag], axis=-1).reshape(x.shape)

    x = w["tok_embeddings.weight"][ids]
    for layer in range(config.layers):
        prefix = f"layers.{layer}"
        a = norm(x, f"{prefix}.attention_norm")
        q, k, v = (
            (a @ w[f"{prefix}.attention.{n}.weight"].T) for n in ("wq", "wk", "wv")
        )
        q = turned(q.reshape(T, H, h))
        k = turned(k.reshape(T, K, h))
        v = v.reshape(T, K, h)
        mixed = np.zeros((T, H, h))
        for head in range(H):
            shared = head // (H // K)
            for t in range(T):
                scores = k[: t + 1, shared] @ q[t, head] / math.sqrt(h)
                weight = np.exp(scores - scores.max())
                mixed[t, head] = weight @ v[: t + 1, shared] / weight.sum()
        x = x + mixed.reshape(T, H * h) @ w[f"{prefix}.attention.wo.weight"].T
        f = norm(x, f"{prefix}.ffn_norm")
        gate = f @ w[f"{prefix}.feed_forward.w1.weight"].T
        up = f @ w[f"{prefix}.feed_forward.w3.weight"].T
        x = (
            x
            + (gate / (1 + np.exp(-gate)) * up) @ w[f"{prefix}.feed_forward.w2.weight"].T
        )
    output = w.get("output.weight", w["tok_embeddings.weight"])
    return norm(x, "norm") @ output.T


def run(
    model: LlamaTransformer, ids: list[int], chunk: int = 0, length: int = 0
) -> npt.NDArray[np.float32]:
    """Returns the logits [T, V] of all positions, computed in chunks (0: in one)."""
    context = InferenceContext(model.args, length or len(ids))
    parts = [
        model.forward(
            context, ids[at : at + (chunk or len(ids))], at, all_positions=True
        ).numpy()
        for at in range(0, len(ids), chunk or len(ids))
    ]
    return np.concatenate(parts)


def check_bits(found: npt.NDArray[np.float32], expected: npt.NDArray[np.float32]) -> None:
    """Hold logits against others, bit for bit."""
    assert found.dtype == expected.dtype == np.float32
    both = (np.ascontiguousarray(logits).view(np.uint32) for logits in (found, expected))
    np.testing.assert_array_equal(*both)


@pytest.mark.parametrize(
    ("config", "dtype", "count"),
    [
        *((c, ml.float32, 60) for c in CONFIGS),
        (GROUPED, ml.float16, 40),
        (GROUPED, ml.float32, 600),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_float32_logits_are_those_of_the_formula_in_float64(
    config: Tiny, dtype: ml.DType, count: int
) -> None:
    """Far beyond position 256 too."""
    ids = token_ids(config, count)
    values = weights(config)
    exact_weights = {
        n: w.astype(dtype.numpy_dtype).astype(np.float32) for n, w in values.items()
    }
    found = run(transformer(config, dtype), ids, chunk=250)
    exact = reference_logits(config, exact_weights, ids)
    assert exact.std() > 0.5
    assert np.abs(found - exact).max() < 1e-4


def test_bfloat16_logits_are_near_the_formula_on_the_rounded_weights() -> None:
    ids = token_ids(GROUPED, 300)
    found = run(transformer(GROUPED, ml.bfloat16), ids)
    exact = reference_logits(GROUPED, rounded(weights(GROUPED)), ids)
    error = np.abs(found - exact)
    # Some twenty roundings of 2^-9 each on the way, and a sharp softmax that enlarges
    # them.
    assert np.sqrt((error**2).mean()) < 0.05 * exact.std()
    late = (error[256:] ** 2).mean()
    early = (error[:256] ** 2).mean()
    assert late < 2 * early


def test_a_token_sees_those_before_it_and_none_after() -> None:
    model = transformer(GROUPED)
    ids = token_ids(GROUPED, 30)
    changed = [*ids[:20], (ids[20] + 1) % GROUPED.vocab, *ids[21:]]
    one = run(model, ids)
    other = run(model, changed)
    check_bits(one[:20], other[:20])
    assert (one[20:] != other[20:]).any(axis=1).all()


def test_the_mask_knows_the_cached_columns() -> None:
    mask = causal_mask(3, 2)
    assert mask is not None
    np.testing.assert_array_equal(mask.numpy(), np.triu(np.full((3, 5), -np.inf), 3))
    assert mask.dtype is ml.float32
    assert causal_mask(1, 7) is None


def check_every_way(
    model: LlamaTransformer, ids: list[int], on_all_sets: bool = True
) -> None:
    """Hold together the bits of all chunks, numbers of threads and, if asked, instruction
    sets.

    And those in a longer context, and of the last position alone.
    """
    ml.set_num_threads(1)
    one = run(model, ids)
    check_bits(run(model, ids, length=1000), one)
    last = model.forward(InferenceContext(model.args, len(ids)), ids)
    assert (last.shape, last.dtype) == ((1, model.args.vocab_size), ml.float32)
    check_bits(last.numpy(), one[-1:])
    for threads in (2, 3, 7):
        ml.set_num_threads(threads)
        for chunk in (0, 7, 64):
            check_bits(run(model, ids, chunk), one)
    ml.set_num_threads(1)
    for isa in ml.build_info()["available_isas"] if on_all_sets else ():
        kernels.set_isa(isa)
        for chunk in (0, 1, 7, 64):
            check_bits(run(model, ids, chunk), one)


@pytest.mark.parametrize("dtype", [ml.bfloat16, ml.float32, ml.float16], ids=str)
@pytest.mark.parametrize("name", ["grouped", "head_dim_10", "wide"])
def test_every_way_to_run_a_text_gives_the_same_bits(name: str, dtype: ml.DType) -> None:
    """The widest is split over threads, the others need not be."""
    config = next(config for config in (*CONFIGS, WIDE) if config.name == name)
    check_every_way(transformer(config, dtype), token_ids(config, 70), name != "wide")


@DTYPES
def test_a_reused_prefix_gives_the_same_bits(dtype: ml.DType) -> None:
    model = transformer(GROUPED, dtype)
    first = token_ids(GROUPED, 50, seed=1)
    second = token_ids(GROUPED, 50, seed=2)
    context = InferenceContext(model.args, 64)
    model.forward(context, first)
    mixed = first[:23] + second[23:]
    reused = model.forward(context, mixed[23:], start_pos=23, all_positions=True)
    check_bits(reused.numpy(), run(model, mixed)[23:])
    assert context.length == 50


def test_a_step_that_fails_leaves_only_the_positions_before_it() -> None:
    model = transformer(GROUPED)
    context = InferenceContext(model.args, 16)
    model.forward(context, [1, 2, 3, 4, 5])
    model.layers[1].forward = None  # type: ignore[method-assign]
    with pytest.raises(TypeError):
        model.forward(context, [7], start_pos=3)
    assert context.length == 3


def test_an_id_outside_of_the_vocabulary_is_refused_before_anything_is_read() -> None:
    model = transformer(GROUPED)
    context = InferenceContext(model.args, 16)
    model.forward(context, [1, 2])
    for bad in (-1, GROUPED.vocab, 2**31, 2**40, -(2**31)):
        with pytest.raises(
            TokenIdError, match=f"tokens\\[1\\] must be from 0 to 100: got {bad}"
        ):
            model.forward(context, [5, bad], start_pos=0)
        assert context.length == 2


def test_ids_are_any_sequence_of_integers_and_nothing_else() -> None:
    bad: list[Any] = [[], [[1, 2]], [1.5], ["a"], [True], [2**70], 5, [[1], [1, 2]]]
    for given in bad:
        with pytest.raises(TokenIdError):
            token_tensor(given, 100)
    wide = np.array([1, 0, 2, 0, 99, 0])
    tensor = ml.Tensor.from_numpy(wide[::2].astype(np.int32))
    good: list[Any] = [
        [1, 2, 99],
        (1, 2, 99),
        wide[::2],
        wide[::2].astype(np.uint8),
        tensor,
    ]
    for given in good:
        ids = token_tensor(given, 100)
        assert ids.dtype is ml.int32
        assert ids.tolist() == [1, 2, 99]


def test_a_context_of_another_model_is_refused() -> None:
    context = InferenceContext(CONFIGS[0].args(), 16)
    with pytest.raises(ModelError, match="context must be made for this model"):
        transformer(GROUPED).forward(context, [1])


def built_of(values: Weights) -> LlamaTransformer:
    tensors = {n: ml.Tensor.from_numpy(w.astype(np.float32)) for n, w in values.items()}
    return LlamaTransformer(GROUPED.args(), tensors)


def test_attributes_have_the_names_of_the_checkpoint_keys() -> None:
    model = transformer(GROUPED)
    for name in weights(GROUPED):
        found: object = model
        for part in name.removesuffix(".weight").split("."):
            found = found[int(part)] if isinstance(found, tuple) else getattr(found, part)
        weight = getattr(found, "weight", found)
        assert isinstance(weight, ml.Tensor)
        assert weight.name == name


def test_not_a_number_in_a_weight_reaches_the_logits() -> None:
    values = weights(GROUPED)
    values["layers.1.attention.wv.weight"][3, 5] = np.nan
    assert np.isnan(run(built_of(values), [1, 2, 3])).all()


def test_huge_finite_scores_never_give_not_a_number() -> None:
    values = {n: w * 1e4 if ".wq." in n else w for n, w in weights(GROUPED).items()}
    assert np.isfinite(run(built_of(values), token_ids(GROUPED, 20))).all()


# Against numbers that transformers gave once: `tests/golden/make_golden.py` made them,
# and their provenance is in `tests/golden/llama.json`.
GOLDEN = Path(__file__).resolve().parent.parent / "golden"
DESCRIBED = json.loads((GOLDEN / "llama.json").read_text(encoding="ascii"))
MODELS = [config for config in CONFIGS if config.name in DESCRIBED["models"]]


def test_golden_numbers_say_where_they_come_from_and_are_small() -> None:
    assert len(MODELS) == len(DESCRIBED["models"]) == 3
    assert {"script", "torch", "transformers", "weights"} <= set(DESCRIBED["provenance"])
    assert sum(path.stat().st_size for path in GOLDEN.glob("llama.*")) < 200_000


@pytest.mark.parametrize("config", MODELS, ids=lambda c: c.name)
def test_float32_logits_are_golden(config: Tiny) -> None:
    ids = DESCRIBED["models"][config.name]["ids"]
    expected = np.load(GOLDEN / "llama.npz")[config.name]
    found = run(transformer(config), ids)[DESCRIBED["positions"]]
    assert expected.shape == found.shape
    assert expected.std() > 1
    assert np.abs(found - expected).max() < 1e-4


@pytest.mark.parametrize("config", MODELS, ids=lambda c: c.name)
def test_bfloat16_errs_no_more_than_transformers_did(config: Tiny) -> None:
    described = DESCRIBED["models"][config.name]
    exact = reference_logits(config, rounded(weights(config)), described["ids"])
    error = run(transformer(config, ml.bfloat16), described["ids"]) - exact
    assert np.abs(error).max() <= 1.1 * described["bfloat16_max_error"]
    assert np.sqrt((error**2).mean()) <= 1.1 * described["bfloat16_rms_error"]


@pytest.mark.parametrize("config", MODELS, ids=lambda c: c.name)
def test_greedy_tokens_are_golden(config: Tiny) -> None:
    described = DESCRIBED["models"][config.name]
    model = transformer(config)
    context = InferenceContext(model.args, 10 + len(described["greedy"]))
    tokens = described["ids"][:10]
    found = []
    for _ in described["greedy"]:
        logits = model.forward(context, tokens, context.length)
        tokens = [int(ml.argmax(logits).item())]
        found += tokens
    assert found == described["greedy"]
