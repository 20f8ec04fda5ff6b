"""Meta's tensor names: which there are."""

from src.checkpoint.names import is_harmless, is_matrix, rows_of, tensor_row, with_rows


def test_rotary_tables_are_harmless_and_nothing_else_is() -> None:
    assert is_harmless("rope.freqs")
    assert is_harmless("layers.31.attention.inner_attention.rope.freqs")
    others = (
        "rope.freqs2",
        "x.rope.freqs",
        "norm.weight",
        "layers.x.rope.freqs",
        "rope.freqs\n",
    )
    for name in others:
        assert not is_harmless(name)


def test_rows_of_a_family_replace_those_of_the_same_name_or_follow_them() -> None:
    norm = tensor_row(
        "ffn_norm", "post_feedforward_layernorm", "post_ffw_norm", "none", "D"
    )
    added = tensor_row("attention.q_norm", "self_attn.q_norm", "attn_q_norm", "none", "h")
    plain = rows_of(2)
    rows = rows_of(2, with_rows(norm, added))
    assert len(rows) == len(plain) + 2
    found = {row.name: row for row in rows}
    assert found["layers.1.ffn_norm.weight"].gguf == "blk.1.post_ffw_norm.weight"
    assert found["layers.1.attention.q_norm.weight"].sizes == ("h",)
    changed = {"layers.0.ffn_norm.weight", "layers.1.ffn_norm.weight"}
    assert [row for row in plain if row.name not in changed] == [
        row for row in rows if row.name not in changed and "q_norm" not in row.name
    ]


def test_only_tensors_of_two_sizes_are_matrices() -> None:
    matrices = {row.name.split(".")[-2] for row in rows_of(1) if is_matrix(row.name)}
    assert matrices == {
        "tok_embeddings",
        "output",
        "wq",
        "wk",
        "wv",
        "wo",
        "w1",
        "w2",
        "w3",
    }
    assert not is_matrix("layers.0.attention.wq.bias")
    assert not is_matrix("rope.freqs")


def test_a_bias_is_as_long_as_its_matrix_has_rows() -> None:
    matrices = ("wq", "wk", "wv", "wo", "w1", "w2", "w3")
    assert [
        row.sizes for row in rows_of(1, biases=matrices) if row.name.endswith(".bias")
    ] == [("Hh",), ("Kh",), ("Kh",), ("D",), ("F",), ("D",), ("F",)]
    [bias] = [row for row in rows_of(1, biases=("wk",)) if "bias" in row.name]
    assert (bias.name, bias.gguf) == ("layers.0.attention.wk.bias", "blk.0.attn_k.bias")
    assert bias.hugging_face == "model.layers.0.self_attn.k_proj.bias"
