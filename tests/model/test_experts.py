"""The feed-forward with experts: its router and its sum."""

from pathlib import Path

import numpy as np
import pytest

from src import ml
from src.model import ModelConfigError, load_model
from src.model.experts import MixtureOfExperts, expert_fields
from tests.model.families import write_family
from tests.model.tiny import uniform


def test_the_result_is_the_weighted_sum_of_the_chosen_experts(tmp_path: Path) -> None:
    model = load_model(write_family(tmp_path, "qwen3_moe", ml.float32))
    layer = model.transformer.layers[1].feed_forward
    assert isinstance(layer, MixtureOfExperts)
    assert layer.w1.name == "layers.1.feed_forward.experts.w1.weight"
    x = ml.tensor(uniform(5, 4 * 20).reshape(4, 20).astype(np.float32))
    logits = x.numpy() @ layer.router.numpy().T
    experts, weights = layer.choose(x)
    result = layer.forward(x).numpy()
    for t in range(4):
        chosen = sorted(np.argsort(-logits[t])[:3].tolist())
        assert experts.numpy()[t].tolist() == chosen
        shares = np.exp(logits[t][chosen])
        np.testing.assert_allclose(weights.numpy()[t], shares / shares.sum(), rtol=1e-5)
        expected = np.zeros(20, np.float32)
        for expert, weight in zip(chosen, weights.numpy()[t], strict=True):
            gate, up, down = (
                stack.weight(expert).numpy() for stack in (layer.w1, layer.w3, layer.w2)
            )
            z = gate @ x.numpy()[t]
            expected += weight * (down @ (z / (1 + np.exp(-z)) * (up @ x.numpy()[t])))
        np.testing.assert_allclose(result[t], expected, rtol=1e-4, atol=1e-6)


def test_both_names_of_the_number_of_experts_are_read() -> None:
    for keys, count in (
        ({"num_experts": 6}, 6),
        ({"num_local_experts": 5}, 5),
        ({"num_experts": 4, "num_local_experts": 4}, 4),
        ({}, 9),
    ):
        fields = expert_fields({**keys, "num_experts_per_tok": 2}, default_count=9)
        assert fields == {"n_experts": count, "n_active_experts": 2}
    different = {"num_experts": 4, "num_local_experts": 5, "num_experts_per_tok": 2}
    with pytest.raises(ModelConfigError, match="got 4 and 5"):
        expert_fields(different, default_count=9)
