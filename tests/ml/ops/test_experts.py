"""The ops of a feed-forward with experts, against their formulas and against each other."""

from typing import Any

import numpy as np
import pytest

from src import ml
from src.ml import kernels
from tests.model.tiny import uniform

T = 9
A = 3
E = 5
PAIRS: int = kernels.lib.EXPERT_PAIRS
D = 64
F = 96
# A format with separate scales, one whose blocks contain them, and a plain dtype.
FORMATS = ("bfloat16", "float32", "int8_block", "q8_0", "q4_0")


def random(seed: int, *shape: int) -> Any:
    return uniform(seed, int(np.prod(shape))).reshape(shape).astype(np.float32)


def experts_of(seed: int, out: int, columns: int, kind: str) -> ml.ExpertWeights:
    plain = [ml.tensor(random(seed + e, out, columns) / 8) for e in range(E)]
    if kind in ("bfloat16", "float32"):
        return ml.ExpertWeights([weight.to(kind) for weight in plain])
    return ml.ExpertWeights([ml.quantize(weight, kind) for weight in plain])


def choice(seed: int = 1) -> tuple[ml.Tensor, ml.Tensor]:
    return ml.choose_experts(ml.tensor(random(seed, T, E)), A, is_share_of_all=False)


def layer(x: ml.Tensor, kind: str, chosen: tuple[ml.Tensor, ml.Tensor]) -> ml.Tensor:
    experts, weights = chosen
    gate, up = experts_of(10, F, D, kind), experts_of(20, F, D, kind)
    hidden = ml.expert_hidden(x, experts, gate, up)
    return ml.expert_outputs(hidden, experts, weights, experts_of(30, D, F, kind))


@pytest.mark.parametrize("kind", FORMATS)
def test_each_token_gets_the_bits_of_its_experts_one_after_the_other(kind: str) -> None:
    x = ml.tensor(random(0, T, D)).to("float32" if kind == "float32" else "bfloat16")
    experts, weights = choice()
    gate, up, down = (
        experts_of(seed, *shape, kind)
        for seed, shape in ((10, (F, D)), (20, (F, D)), (30, (D, F)))
    )
    expected = np.zeros((T, D), np.float32)
    for t in range(T):
        for a in range(A):
            e = int(experts.numpy()[t, a])
            row = x[t : t + 1]
            hidden = ml.swiglu(
                *ml.linear_transformations(row, (gate.weight(e), up.weight(e)))
            )
            result = ml.linear_transformation(hidden, down.weight(e), ml.float32)
            expected[t] += weights.numpy()[t, a] * result.numpy()[0]
    np.testing.assert_array_equal(layer(x, kind, (experts, weights)).numpy(), expected)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_token_alone_has_the_bits_that_it_has_among_others(kind: str) -> None:
    x = ml.tensor(random(0, T, D)).to("float32" if kind == "float32" else "bfloat16")
    experts, weights = choice()
    together = layer(x, kind, (experts, weights)).numpy()
    for t in range(T):
        own = slice(t, t + 1)
        alone = layer(x[own].contiguous(), kind, (experts[own], weights[own]))
        np.testing.assert_array_equal(alone.numpy()[0], together[t])


@pytest.mark.parametrize("kind", ["bfloat16", "q4_0"])
def test_many_pairs_of_an_expert_have_the_bits_of_a_product(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Experts 0 and 1 have more pairs than a segment, and expert 4 has a few."""
    rows = 2 * PAIRS + 5
    x = ml.tensor(random(0, rows, D)).to("bfloat16")
    numbers = np.array([[0, 1]] * (rows - 3) + [[1, 4]] * 3, np.int32)
    experts, weights = ml.tensor(numbers), ml.tensor(random(1, rows, 2))
    gate, up = experts_of(10, F, D, kind), experts_of(20, F, D, kind)
    down = experts_of(30, D, F, kind)
    hidden = ml.expert_hidden(x, experts, gate, up)
    outputs = ml.expert_outputs(hidden, experts, weights, down)
    for stack in (gate, up, down):  # the way of experts with different dtypes
        monkeypatch.setattr(stack, "_matrix", None)
    same = ml.expert_hidden(x, experts, gate, up)
    np.testing.assert_array_equal(hidden.numpy(), same.numpy())
    expected = ml.expert_outputs(hidden, experts, weights, down)
    np.testing.assert_array_equal(outputs.numpy(), expected.numpy())


@pytest.mark.parametrize("kind", ["bfloat16", "q8_0"])
def test_threads_and_instruction_sets_change_no_bit(kind: str) -> None:
    x = ml.tensor(random(0, 40, D)).to("bfloat16")
    numbers = np.sort(np.argsort(random(2, 40, E), axis=1)[:, :A], axis=1)
    chosen = ml.tensor(numbers.astype(np.int32)), ml.tensor(random(3, 40, A))
    expected = layer(x, kind, chosen).numpy()
    before = ml.get_num_threads(), ml.build_info()["isa"]
    try:
        for isa in kernels.available_isas():
            kernels.set_isa(isa)
            for threads in (1, 2, 3):
                ml.set_num_threads(threads)
                found = layer(x, kind, chosen).numpy()
                np.testing.assert_array_equal(found, expected, isa)
    finally:
        ml.set_num_threads(before[0])
        kernels.set_isa(before[1])


@pytest.mark.parametrize("is_share_of_all", [False, True])
def test_the_largest_logits_are_chosen_with_their_softmax(is_share_of_all: bool) -> None:
    logits = random(3, T, E)
    experts, weights = ml.choose_experts(ml.tensor(logits), A, is_share_of_all)
    assert (experts.dtype, weights.dtype) == (ml.int32, ml.float32)
    for t in range(T):
        chosen = sorted(np.argsort(-logits[t])[:A].tolist())
        assert experts.numpy()[t].tolist() == chosen
        powers = np.exp(logits[t].astype(np.float64))
        total = powers.sum() if is_share_of_all else powers[chosen].sum()
        np.testing.assert_allclose(weights.numpy()[t], powers[chosen] / total, rtol=1e-6)


def test_of_equal_logits_the_lower_number_is_chosen() -> None:
    logits = ml.tensor([[1.0, 2.0, 2.0, 1.0, 2.0], [0.0, 0.0, 0.0, 0.0, 0.0]])
    experts, weights = ml.choose_experts(logits, 2, is_share_of_all=False)
    assert experts.numpy().tolist() == [[1, 2], [0, 1]]
    assert weights.numpy().tolist() == [[0.5, 0.5], [0.5, 0.5]]
    unknown = ml.tensor([[float("nan"), 1.0, float("nan"), -1.0, 0.0]])
    last, _ = ml.choose_experts(unknown, 4, is_share_of_all=True)
    assert last.numpy().tolist() == [[0, 1, 3, 4]]
    three, _ = ml.choose_experts(logits, 4, is_share_of_all=False)
    assert three.numpy().tolist() == [[0, 1, 2, 4], [0, 1, 2, 3]]


def test_biases_are_added_before_the_activation_and_before_the_weight() -> None:
    x = ml.tensor(random(0, 1, D))
    experts = ml.tensor([[2]], dtype=ml.int32)
    weights = ml.tensor([[0.5]])
    zeros = [ml.zeros((F, D)) for _ in range(E)]
    gate = ml.ExpertWeights(zeros, [ml.full((F,), float(e)) for e in range(E)])
    up = ml.ExpertWeights(zeros, [ml.full((F,), 3.0) for _ in range(E)])
    hidden = ml.expert_hidden(x, experts, gate, up)
    np.testing.assert_allclose(hidden.numpy(), 2 / (1 + np.exp(-2.0)) * 3, rtol=1e-6)
    down = ml.ExpertWeights(
        [ml.zeros((D, F)) for _ in range(E)], [ml.full((D,), float(e)) for e in range(E)]
    )
    outputs = ml.expert_outputs(hidden, experts, weights, down)
    np.testing.assert_array_equal(outputs.numpy(), np.full((1, D), 1.0, np.float32))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_clamped_experts_with_biases_have_the_bits_of_their_ops(
    monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    x = ml.tensor(random(0, T, D)).to(dtype)
    experts, _ = choice()
    stacks = []
    for seed in (10, 20):
        weights = [ml.tensor(8 * random(seed + e, F, D)).to(dtype) for e in range(E)]
        biases = [ml.tensor(4 * random(seed + 5 + e, F)).to(dtype) for e in range(E)]
        stacks.append(ml.ExpertWeights(weights, biases))
    hidden = ml.expert_hidden(x, experts, *stacks, None, "clamped_swiglu")
    for t in range(T):
        for a, e in enumerate(experts.numpy()[t].tolist()):
            products = ml.linear_transformations(
                x[t : t + 1],
                [stack.weight(e) for stack in stacks],
                None,
                [stack.bias(e) for stack in stacks],
            )
            expected = ml.clamped_swiglu(*products).numpy()[0]
            np.testing.assert_array_equal(hidden.numpy()[t * A + a], expected)
    for stack in stacks:  # the way of experts with different dtypes
        monkeypatch.setattr(stack, "_matrix", None)
    same = ml.expert_hidden(x, experts, *stacks, None, "clamped_swiglu")
    np.testing.assert_array_equal(hidden.numpy(), same.numpy())


def test_no_tokens_give_no_results() -> None:
    x = ml.zeros((0, D))
    experts = ml.zeros((0, A), dtype=ml.int32)
    hidden = ml.expert_hidden(
        x, experts, experts_of(1, F, D, "float32"), experts_of(2, F, D, "float32")
    )
    assert hidden.shape == (0, F)
    weights = ml.zeros((0, A))
    down = experts_of(3, D, F, "float32")
    assert ml.expert_outputs(hidden, experts, weights, down).shape == (0, D)


def test_arguments_that_do_not_fit_are_refused() -> None:
    x = ml.tensor(random(0, T, D))
    experts, weights = choice()
    gate = experts_of(10, F, D, "float32")
    down = experts_of(30, D, F, "float32")
    hidden = ml.expert_hidden(x, experts, gate, gate)
    other = ml.tensor(np.full((T, A), E, np.int32))
    cases: list[tuple[Any, str]] = [
        (lambda: ml.expert_hidden(x, other, gate, gate), "experts must be from 0 to 4"),
        (lambda: ml.expert_hidden(x, experts, gate, down), "gate.shape must equal up"),
        (lambda: ml.expert_hidden(hidden, experts, gate, gate), "x must be "),
        (lambda: ml.expert_hidden(x[:2], experts, gate, gate), "x.shape.0. must equal 9"),
        (lambda: ml.expert_outputs(hidden[:2], experts, weights, down), "must equal 27"),
        (lambda: ml.choose_experts(weights, 4, False), "count must be from 1 to"),
        (lambda: ml.ExpertWeights([]), "weights must be matrices of one shape"),
        (lambda: ml.ExpertWeights([x, hidden]), "weights must be matrices of one shape"),
    ]
    for call, words in cases:
        with pytest.raises(ml.TensorError, match=words):
            call()
