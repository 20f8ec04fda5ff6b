"""Meta's tensor names: which there are, how they are split, and the feed-forward size."""

import pytest

from src.checkpoint.names import Split, feed_forward_dim, is_harmless, row_of, rows_of, split_dim


def test_a_model_of_two_layers_has_3_plus_9_per_layer() -> None:
    names = [name for name, _ in rows_of(2)]
    assert len(names) == len(set(names)) == 3 + 2 * 9
    assert names[:3] == ["tok_embeddings.weight", "norm.weight", "output.weight"]
    assert "layers.1.feed_forward.w3.weight" in names


def test_only_the_output_layer_is_optional() -> None:
    assert [name for name, row in rows_of(3) if row.optional] == ["output.weight"]


@pytest.mark.parametrize("name", [name for name, _ in rows_of(12)])
def test_each_name_is_found_again_in_the_table(name: str) -> None:
    row = row_of(name)
    assert row is not None
    assert name.endswith(row.name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "norm",
        "layers.0.norm.weight",
        "layers.00.attention.wq.weight",
        "layers.-1.attention.wq.weight",
        "layers.99999.attention.wq.weight",
        "layers.0.attention.wq.bias",
        "layers.٣.attention.wq.weight",
        "layers.0.attention.wq.weight\n",
        "model.layers.0.attention.wq.weight",
    ],
)
def test_other_names_are_not_in_the_table(name: str) -> None:
    assert row_of(name) is None


def test_rotary_tables_are_harmless_and_nothing_else_is() -> None:
    assert is_harmless("rope.freqs")
    assert is_harmless("layers.31.attention.inner_attention.rope.freqs")
    for name in (
        "rope.freqs2",
        "x.rope.freqs",
        "norm.weight",
        "layers.x.rope.freqs",
        "rope.freqs\n",
    ):
        assert not is_harmless(name)


@pytest.mark.parametrize(
    ("name", "shape", "axis"),
    [
        ("layers.0.attention.wq.weight", (4, 8), 0),
        ("layers.0.attention.wk.weight", (4, 8), 0),
        ("layers.0.attention.wv.weight", (4, 8), 0),
        ("layers.0.feed_forward.w1.weight", (4, 8), 0),
        ("layers.0.feed_forward.w3.weight", (4, 8), 0),
        ("output.weight", (4, 8), 0),
        ("layers.0.attention.wo.weight", (8, 4), 1),
        ("layers.0.feed_forward.w2.weight", (8, 4), 1),
        ("tok_embeddings.weight", (16, 4), 1),
        ("tok_embeddings.weight", (8, 8), 0),
        ("norm.weight", (8,), None),
        ("layers.0.attention_norm.weight", (8,), None),
        ("layers.0.ffn_norm.weight", (8,), None),
    ],
)
def test_each_tensor_is_split_as_meta_splits_it(
    name: str, shape: tuple[int, ...], axis: int | None
) -> None:
    row = row_of(name)
    assert row is not None
    assert split_dim(row, shape, dim=8) == axis
    assert (axis is None) == (row.split is Split.REPLICATED)


@pytest.mark.parametrize(
    ("dim", "multiple_of", "multiplier", "size"),
    [
        (4096, 256, None, 11008),  # Llama 2 7B
        (5120, 256, None, 13824),  # Llama 2 13B
        (8192, 4096, 1.3, 28672),  # Llama 2 70B, Llama 3 70B
        (4096, 1024, 1.3, 14336),  # Llama 3 8B
        (2048, 256, 1.5, 8192),  # Llama 3.2 1B
        (3072, 256, 1.0, 8192),  # Llama 3.2 3B
        (16384, 4096, 1.2, 53248),  # Llama 3.1 405B
    ],
)
def test_the_feed_forward_size_is_that_of_the_published_models(
    dim: int, multiple_of: int, multiplier: float | None, size: int
) -> None:
    params = {"dim": dim, "multiple_of": multiple_of, "ffn_dim_multiplier": multiplier}
    assert feed_forward_dim(params) == size


def test_without_multiple_of_the_tensors_say_the_size() -> None:
    assert feed_forward_dim({"dim": 4096, "multiple_of": None}) is None
    assert feed_forward_dim({"dim": 4096}) is None
