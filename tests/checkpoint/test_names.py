"""Meta's tensor names: which there are."""

from src.checkpoint.names import LayerParts, is_harmless, is_matrix, rows_of


def test_rotary_tables_are_harmless_and_nothing_else_is() -> None:
    assert is_harmless("rope.freqs")
    assert is_harmless("layers.31.attention.inner_attention.rope.freqs")
    others = ("rope.freqs2", "x.rope.freqs", "norm.weight", "layers.x.rope.freqs", "rope.freqs\n")
    for name in others:
        assert not is_harmless(name)


def test_norms_of_queries_and_keys_are_of_each_head_or_of_all() -> None:
    for kind, sizes in (("head", ("h", "h")), ("all", ("Hh", "Kh"))):
        q, k = rows_of(1, LayerParts(query_key_norm=kind))[-2:]
        assert (*q.sizes, *k.sizes) == sizes
        assert (q.gguf, k.gguf) == ("blk.0.attn_q_norm.weight", "blk.0.attn_k_norm.weight")


def test_only_tensors_of_two_sizes_are_matrices() -> None:
    matrices = {row.name.split(".")[-2] for row in rows_of(1) if is_matrix(row.name)}
    assert matrices == {"tok_embeddings", "output", "wq", "wk", "wv", "wo", "w1", "w2", "w3"}
    assert not is_matrix("layers.0.attention.wq.bias")
    assert not is_matrix("rope.freqs")


def test_a_bias_is_as_long_as_its_matrix_has_rows() -> None:
    parts = LayerParts(("wq", "wk", "wv", "wo", "w1", "w2", "w3"))
    assert [row.sizes for row in rows_of(1, parts) if row.name.endswith(".bias")] == [
        ("Hh",), ("Kh",), ("Kh",), ("D",), ("F",), ("D",), ("F",)
    ]  # fmt: skip
    [bias] = [row for row in rows_of(1, LayerParts(("wk",))) if "bias" in row.name]
    assert (bias.name, bias.gguf) == ("layers.0.attention.wk.bias", "blk.0.attn_k.bias")
    assert bias.hugging_face == "model.layers.0.self_attn.k_proj.bias"
