from dataclasses import replace

import numpy as np
import pytest

from src import ml
from src.model import ModelConfigError, RopeScaling
from src.model.args import ModelArgs, model_args
from tests.model.tiny import GROUPED, Tiny, weights


def tensors(config: Tiny = GROUPED, dtype: ml.DType = ml.bfloat16) -> dict[str, ml.Tensor]:
    return {
        name: ml.Tensor.from_numpy(weight.astype(dtype.numpy_dtype), name=name)
        for name, weight in weights(config).items()
    }


def args_of(config: Tiny = GROUPED, factor: float | None = None, **changes: object) -> ModelArgs:
    params = {k: v for k, v in (config.params() | changes).items() if v is not None}
    return model_args(params, tensors(config), factor)


def test_sizes_come_from_the_parameters_and_the_tensors() -> None:
    assert args_of() == replace(GROUPED.args(ml.bfloat16), max_context_length=4096)
    assert args_of().group_size == 4


def test_a_vocabulary_of_minus_one_is_that_of_the_tensors() -> None:
    assert args_of(vocab_size=-1).vocab_size == GROUPED.vocab
    assert args_of(vocab_size=None).vocab_size == GROUPED.vocab


def test_without_key_value_heads_every_query_head_has_its_own() -> None:
    config = Tiny("multi_head", 32, 1, 4, 4, 48, 131)
    assert args_of(config, n_kv_heads=None).n_kv_heads == 4


@pytest.mark.parametrize(
    ("weight", "activation"),
    [(ml.bfloat16, ml.bfloat16), (ml.float16, ml.float32), (ml.float32, ml.float32)],
    ids=["bfloat16", "float16", "float32"],
)
def test_activations_follow_the_weights(weight: ml.DType, activation: ml.DType) -> None:
    assert model_args(GROUPED.params(), tensors(dtype=weight)).dtype is activation


def test_matrices_of_two_dtypes_are_refused() -> None:
    mixed = tensors()
    mixed["output.weight"] = mixed["output.weight"].to(ml.float32)
    with pytest.raises(ModelConfigError, match="matrices of one dtype, got bfloat16, float32"):
        model_args(GROUPED.params(), mixed)


def test_norms_may_be_float32_beside_bfloat16_matrices() -> None:
    mixed = tensors()
    mixed["norm.weight"] = mixed["norm.weight"].to(ml.float32)
    assert model_args(GROUPED.params(), mixed).dtype is ml.bfloat16


def test_integer_weights_are_refused() -> None:
    whole = {n: ml.Tensor.from_numpy(np.zeros(t.shape, np.int32)) for n, t in tensors().items()}
    with pytest.raises(ModelConfigError, match="floating-point weights, got int32"):
        model_args(GROUPED.params(), whole)


def known_size(dim: int, layers: int) -> ModelArgs:
    """Returns the sizes of a large model, for which two narrow tensors stand in."""
    narrow = {
        "tok_embeddings.weight": ml.zeros((128256, 1), ml.bfloat16),
        "layers.0.feed_forward.w1.weight": ml.zeros((8192, 1), ml.bfloat16),
    }
    params: dict[str, object] = {
        "dim": dim, "n_layers": layers, "n_heads": 32, "n_kv_heads": 8, "norm_eps": 1e-5,
        "rope_theta": 500000.0, "use_scaled_rope": True,
    }  # fmt: skip
    return model_args(params, narrow)


@pytest.mark.parametrize(
    ("dim", "layers", "factor"),
    [(4096, 32, 8.0), (8192, 80, 8.0), (2048, 16, 32.0), (3072, 28, 32.0)],
    ids=["3.1 8B", "3.1 70B", "3.2 1B", "3.2 3B"],
)
def test_rope_is_scaled_by_8_but_by_32_in_the_sizes_of_llama_3_2(
    dim: int, layers: int, factor: float
) -> None:
    assert known_size(dim, layers).rope_scaling == RopeScaling(factor, 1.0, 4.0, 8192)


def test_the_scaling_factor_can_be_overridden() -> None:
    assert args_of(use_scaled_rope=True, factor=16.0).rope_scaling == RopeScaling(16.0)


@pytest.mark.parametrize("factor", [0.0, -8.0, 0.5, float("nan"), float("inf"), 1e7])
def test_a_senseless_scaling_factor_is_refused(factor: float) -> None:
    with pytest.raises(ModelConfigError, match="rope_scaling_factor: expected 1 to 1e\\+06"):
        args_of(use_scaled_rope=True, factor=factor)


def test_a_scaling_factor_for_a_model_without_scaling_is_refused() -> None:
    with pytest.raises(ModelConfigError, match="expected a model with use_scaled_rope"):
        args_of(factor=8.0)


@pytest.mark.parametrize(
    ("changes", "length"),
    [
        ({}, 4096),
        ({"rope_theta": None}, 4096),
        ({"rope_theta": 500000.0}, 8192),
        ({"rope_theta": 500000.0, "use_scaled_rope": True}, 131072),
        ({"use_scaled_rope": True, "max_seq_len": 1024}, 1024),
    ],
)
def test_the_longest_context_is_what_the_parameters_say_or_the_familys(
    changes: dict[str, object], length: int
) -> None:
    assert args_of(**changes).max_context_length == length


def test_without_a_theta_it_is_that_of_llama_2() -> None:
    assert args_of(rope_theta=None).rope_theta == 10000.0


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"n_heads": 8, "n_kv_heads": 3}, "n_heads: expected a multiple of n_kv_heads 3, got 8"),
        ({"n_heads": 64, "n_kv_heads": 64}, "head dimension: expected an even number"),
        ({"norm_eps": 0}, "norm_eps: expected 1e-12 to 1, got 0"),
        ({"norm_eps": 1e-300}, "norm_eps: expected 1e-12 to 1, got 1e-300"),
        ({"dim": True}, "dim: expected a whole number, got bool"),
        ({"dim": None}, "dim: expected a whole number, got NoneType"),
        ({"rope_theta": "500000"}, "rope_theta: expected a number, got str"),
    ],
)
def test_contradictions_are_refused_by_name(changes: dict[str, object], match: str) -> None:
    with pytest.raises(ModelConfigError, match=match):
        args_of(**changes)
