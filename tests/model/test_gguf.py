"""A GGUF file as a model: the bits of its weights,
whose activations BF16 alone changes.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from src import ml
from src.checkpoint import CheckpointError
from src.model import (
    LinearRopeScaling,
    LlamaTransformer,
    Model,
    ModelConfigError,
    ModelError,
    RopeFactors,
    YarnRopeScaling,
    find_source,
    forecast_memory,
    load_model,
)
from src.model.saving import save_quantized
from src.tokenizer import TokenizerError
from src.tokenizer.sentencepiece_model import read_sentencepiece_model
from tests.model.test_llama import check_bits, run
from tests.model.tiny import CONFIGS, GROUPED, TIED, Tiny, token_ids, transformer, weights
from tests.support.gguf_writer import (
    F32,
    Q8_0,
    Stored,
    Typed,
    gguf_bytes,
    gguf_name,
    llama_keys,
    llama_tensors,
    q8_0,
    sentencepiece_keys,
)
from tests.support.sentencepiece_writer import RESERVED, model_message, ranked


def write(
    path: Path,
    config: Tiny,
    dtype: Any = np.float32,
    keys: Mapping[str, Any] | None = None,
    tensors: Mapping[str, Any] | None = None,
) -> Path:
    """Write a tiny model; `keys` and `tensors` replace some, or leave them out where
    None.
    """
    all_keys = llama_keys(config) | dict(keys or {})
    all_tensors = llama_tensors(weights(config), dtype) | dict(tensors or {})
    path.write_bytes(
        gguf_bytes(
            {name: value for name, value in all_keys.items() if value is not None},
            {name: value for name, value in all_tensors.items() if value is not None},
        )
    )
    return path


@pytest.mark.parametrize(
    "dtype", [ml.bfloat16, ml.float16, ml.float32], ids=lambda d: d.name
)
@pytest.mark.parametrize(
    "config", [GROUPED, TIED, CONFIGS[0], CONFIGS[2]], ids=lambda c: c.name
)
def test_a_file_gives_the_bits_of_its_weights(
    tmp_path: Path, config: Tiny, dtype: ml.DType
) -> None:
    model = load_model(write(tmp_path / "a.gguf", config, dtype.numpy_dtype))
    ids = token_ids(config, 30)
    built = transformer(config, dtype)
    tensors = {  # norms are float32, as converters write them
        name: ml.Tensor.from_numpy(
            array.astype(dtype.numpy_dtype if array.ndim == 2 else np.float32), name=name
        )
        for name, array in weights(config).items()
    }
    narrow = ml.bfloat16 if dtype is ml.bfloat16 else None
    args = replace(built.args, dtype=ml.float32, feed_forward_dtype=narrow)
    expected = run(LlamaTransformer(args, tensors), ids)
    check_bits(run(model.transformer, ids), expected)


def test_the_parts_of_a_model_are_what_the_file_says(tmp_path: Path) -> None:
    path = write(tmp_path / "a.gguf", GROUPED, ml_dtypes.bfloat16)
    model = load_model(str(path))
    assert model.args == replace(
        GROUPED.args(ml.float32),
        feed_forward_dtype=ml.bfloat16,
        norm_eps=float(np.float32(GROUPED.eps)),
        max_context_length=4096,
    )
    assert model.tokenizer is None
    assert model.source_directory == path
    assert model.checkpoint.mapped_bytes == path.stat().st_size
    assert model.parameter_count == sum(array.size for array in weights(GROUPED).values())
    assert (
        model.checkpoint.names_in_files["layers.1.attention.wq.weight"]
        == "blk.1.attn_q.weight"
    )
    assert model.notes == ()
    assert model.description.startswith(f"{path} (GGUF version 3, a file); ")
    assert not model.transformer.tok_embeddings.numpy().flags.writeable
    model.checkpoint.check_unchanged()
    with path.open("r+b") as stream:
        stream.write(b"GGUX")
    with pytest.raises(CheckpointError, match="rewritten while in use"):
        model.checkpoint.check_unchanged()


def test_a_scale_of_0_in_a_file_of_granite_stands_for_none(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    keys = llama_keys(GROUPED)
    keys = {name.replace("llama.", "granite."): value for name, value in keys.items()}
    keys |= {"general.architecture": "granite", "granite.attention.scale": 0.0}
    path.write_bytes(gguf_bytes(keys, llama_tensors(weights(GROUPED))))
    assert load_model(path).args.attention_multiplier is None  # type: ignore[attr-defined]


def write_with_windows(path: Path, changes: Mapping[str, Any]) -> Path:
    """Write a model of two layers, of which the first has a window and no RoPE."""
    prefix = "granite_swa.attention"
    keys = llama_keys(GROUPED)
    keys = {name.replace("llama.", "granite_swa."): x for name, x in keys.items()}
    keys |= {
        "general.architecture": "granite_swa",
        f"{prefix}.sliding_window": 16,
        f"{prefix}.sliding_window_pattern": [True, False],
        f"{prefix}.rope_pattern": [0, 1],
    }
    keys |= {f"{prefix}.{name}": value for name, value in changes.items()}
    sinks = np.linspace(-1, 1, GROUPED.heads, dtype=np.float32)
    tensors = llama_tensors(weights(GROUPED))
    tensors |= {f"blk.{n}.attn_sinks.weight": sinks for n in range(GROUPED.layers)}
    all_keys = {name: value for name, value in keys.items() if value is not None}
    path.write_bytes(gguf_bytes(all_keys, tensors))
    return path


@pytest.mark.parametrize(
    ("changes", "windows", "rotated"),
    [
        ({}, [16, None], [1]),
        ({"rope_pattern": None}, [16, None], [0, 1]),
        ({"rope_pattern": [False, False]}, [16, None], []),
        ({"sliding_window_pattern": [0, 0]}, [None, None], [1]),
    ],
)
def test_the_layers_with_windows_and_with_rope_are_those_of_the_file(
    tmp_path: Path, changes: dict[str, Any], windows: list[int | None], rotated: list[int]
) -> None:
    model = load_model(write_with_windows(tmp_path / "a.gguf", changes))
    assert (model.args.windows, list(model.args.rotated_layers)) == (windows, rotated)
    sinks = model.transformer.layers[1].attention.sinks  # type: ignore[attr-defined]
    assert sinks.shape == (GROUPED.heads,)
    run(model.transformer, token_ids(GROUPED, 20))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"sliding_window": None}, "attention.sliding_window: expected a value"),
        ({"sliding_window": 0}, "attention.sliding_window: expected an integer in 1.."),
        ({"sliding_window_pattern": None}, "sliding_window_pattern: expected a value"),
        ({"sliding_window_pattern": 2}, "expected a list of only true or false or 0 or"),
        ({"sliding_window_pattern": [True]}, "expected one for each of 2 layers, got 1"),
        ({"rope_pattern": [1, 2]}, "rope_pattern: expected a list of only true or false"),
        ({"rope_pattern": [1, 1, 1]}, "expected one for each of 2 layers, got 3"),
    ],
)
def test_layers_that_a_file_does_not_describe_are_rejected(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    path = write_with_windows(tmp_path / "a.gguf", changes)
    with pytest.raises((CheckpointError, ModelConfigError)) as caught:
        load_model(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert reason in str(caught.value)


def test_biases_are_found_by_their_tensors(tmp_path: Path) -> None:
    bias = np.linspace(-1, 1, GROUPED.dim, dtype=np.float32)
    biases = {f"blk.{layer}.attn_q.bias": bias for layer in range(GROUPED.layers)}
    model = load_model(write(tmp_path / "a.gguf", GROUPED, tensors=biases))
    assert model.args.biases == ("wq",)
    np.testing.assert_array_equal(
        model.transformer.layers[1].attention.wq_bias.numpy(), bias
    )
    with pytest.raises(
        CheckpointError, match=r"without 'blk.1.attn_q.bias' \(1 in all\)"
    ):
        load_model(
            write(
                tmp_path / "a.gguf", GROUPED, tensors=biases | {"blk.1.attn_q.bias": None}
            )
        )


def test_a_model_in_parts_gives_the_bits_of_one_file(tmp_path: Path) -> None:
    whole = load_model(write(tmp_path / "whole.gguf", GROUPED))
    tensors = llama_tensors(weights(GROUPED))
    names = list(tensors)
    paths = [tmp_path / f"m-{number:05d}-of-00002.gguf" for number in (1, 2)]
    for number, path in enumerate(paths):
        keys = llama_keys(GROUPED) if number == 0 else {}
        keys |= {"split.no": Typed(2, number), "split.count": Typed(2, 2)}
        path.write_bytes(
            gguf_bytes(keys, {name: tensors[name] for name in names[number::2]})
        )
    model = load_model(paths[0])
    assert model.checkpoint.files == paths
    assert model.checkpoint.mapped_bytes == sum(path.stat().st_size for path in paths)
    assert "GGUF version 3, 2 files" in model.description
    ids = token_ids(GROUPED, 20)
    check_bits(run(model.transformer, ids), run(whole.transformer, ids))


def test_linear_scaling_comes_from_the_keys_and_can_be_overridden(tmp_path: Path) -> None:
    keys = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    path = write(tmp_path / "a.gguf", GROUPED, keys=keys)
    model = load_model(path)
    assert model.args.rope_scaling == LinearRopeScaling(4.0)
    assert model.notes == ("RoPE scaling factor 4 by rope.scaling.factor",)
    overridden = load_model(path, rope_scaling_factor=2.0)
    assert overridden.args.rope_scaling == LinearRopeScaling(2.0)
    assert overridden.notes == ("RoPE scaling factor 2 by override",)
    factors = {"rope_freqs.weight": np.ones(GROUPED.head_dim // 2, np.float32)}
    with pytest.raises(
        ModelConfigError, match="rope: expected one scaling, got factors and"
    ):
        load_model(write(path, GROUPED, keys=keys, tensors=factors))


def test_yarn_comes_from_the_keys_as_llama_cpp_reads_them(tmp_path: Path) -> None:
    scaling = "llama.rope.scaling"
    keys = {f"{scaling}.type": "yarn", f"{scaling}.factor": 4.0}
    path = write(tmp_path / "a.gguf", GROUPED, keys=keys)
    model = load_model(path)
    context = GROUPED.args().max_context_length
    assert model.args.rope_scaling == YarnRopeScaling(4.0, context)
    assert model.args.max_context_length == 4 * context
    assert model.notes == (f"RoPE scaled by YaRN from {context} positions, factor 4",)
    more: dict[str, Any] = {
        f"{scaling}.original_context_length": 16,
        f"{scaling}.yarn_beta_fast": 4.0,
        f"{scaling}.yarn_beta_slow": 0.5,
        f"{scaling}.attn_factor": 1.5,
        f"{scaling}.yarn_ext_factor": 1.0,
        f"{scaling}.yarn_attn_factor": 9.0,
        f"{scaling}.yarn_log_multiplier": 1.0,
    }
    args = load_model(write(path, GROUPED, keys=keys | more)).args
    found = args.rope_scaling
    assert isinstance(found, YarnRopeScaling)
    assert found.magnitude == pytest.approx(1.5 * found.plain_magnitude)
    assert found == YarnRopeScaling(4.0, 16, attention_factor=found.magnitude)
    assert args.max_context_length == context


def test_factors_of_frequencies_are_said_and_cannot_be_overridden(tmp_path: Path) -> None:
    factors = np.array([1, 1, 2, 8], np.float32)
    path = write(tmp_path / "a.gguf", GROUPED, tensors={FACTORS: factors})
    model = load_model(path)
    assert model.args.rope_scaling == RopeFactors((1.0, 1.0, 2.0, 8.0))
    assert model.notes == (
        "RoPE frequencies divided by factors 1 to 8 by rope_freqs.weight",
    )
    text = (
        f"^{path}: rope_scaling_factor: expected a model with one scaling "
        "factor, got one for each frequency"
    )
    with pytest.raises(ModelConfigError, match=text):
        load_model(path, rope_scaling_factor=2.0)


FACTORS = "rope_freqs.weight"
NOT_REVERSED = Stored((64, 101), F32, weights(GROUPED)["tok_embeddings.weight"].tobytes())
NORM = gguf_name("layers.1.ffn_norm.weight")
WQ = gguf_name("layers.1.attention.wq.weight")


@pytest.mark.parametrize(
    ("keys", "tensors", "reason"),
    [
        (
            {},
            {NORM: None},
            (
                r"tensors: expected 21 tensors by its keys, got without "
                r"'blk.1.ff"
            ),
        ),
        (
            {},
            {"blk.2.attn_q.weight": np.ones((2, 2), np.float32)},
            r"also 'blk.2.attn_q.weight'",
        ),
        ({}, {"blk.0.\x1b": np.ones(2, np.float32)}, r"also 'blk.0.\\x1b' \(1 in all\)"),
        (
            {},
            {WQ: np.ones((64, 32), np.float32)},
            (
                r"'blk.1.attn_q.weight' \[64, 32\] instead "
                r"of"
            ),
        ),
        (
            {},
            {"token_embd.weight": NOT_REVERSED},
            (
                r"\[64, 101\] instead of|\[101, 64\] instead "
                r"of"
            ),
        ),
        (
            {},
            {WQ: np.ones(64, np.float32)},
            (
                r"'blk.1.attn_q.weight' \[64\] instead of \[64, "
                r"64\]"
            ),
        ),
        (
            {"llama.vocab_size": 100},
            {},
            (
                r"'token_embd.weight' \[101, 64\] instead of \[100, "
                r"64\]"
            ),
        ),
        (
            {"llama.attention.head_count_kv": 3},
            {},
            (
                r"n_heads: expected a multiple of n_kv_heads "
                r"3"
            ),
        ),
        (
            {"llama.attention.head_count": 64},
            {},
            (
                r"llama.rope.dimension_count: expected 1, the "
                r"si"
            ),
        ),
        (
            {},
            {"blk.0.ffn_down.weight": Stored((64, 90), Q8_0, bytes(6120))},
            r"of 32, .*90",
        ),
        (
            {},
            {"output_norm.weight": Stored((64,), Q8_0, bytes(68))},
            r"norm.weight: expec",
        ),
        (
            {},
            {FACTORS: np.ones(5, np.float32)},
            (
                r"expected float32 \[4\], got float32 "
                r"\[5\]"
            ),
        ),
        (
            {},
            {FACTORS: np.ones((2, 2), np.float32)},
            (
                r"float32 \[4\], got float32 \[2, "
                r"2\]"
            ),
        ),
        (
            {},
            {FACTORS: np.ones(4, np.float16)},
            (
                r"expected float32 \[4\], got float16 "
                r"\[4\]"
            ),
        ),
        (
            {},
            {FACTORS: np.zeros(4, np.float32)},
            (
                r"expected factors in 1e-06..1e\+06, got "
                r"0.0"
            ),
        ),
        (
            {},
            {FACTORS: np.full(4, np.nan, np.float32)},
            (
                r"factors in 1e-06..1e\+06, got "
                r"nan"
            ),
        ),
        (
            {},
            {FACTORS: np.full(4, np.inf, np.float32)},
            (
                r"factors in 1e-06..1e\+06, got "
                r"inf"
            ),
        ),
        (
            {"tokenizer.chat_template": 1},
            {},
            (
                r"tokenizer.chat_template: expected a text, got "
                r"1"
            ),
        ),
        (
            {"tokenizer.chat_template.tool_use": 1},
            {},
            (
                r"template.tool_use: expected a text, got "
                r"1"
            ),
        ),
    ],
)
def test_contradictions_are_refused(
    tmp_path: Path, keys: dict[str, Any], tensors: dict[str, Any], reason: str
) -> None:
    path = write(tmp_path / "a.gguf", GROUPED, keys=keys, tensors=tensors)
    with pytest.raises((CheckpointError, ModelError), match=reason) as caught:
        load_model(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert str(caught.value).isprintable()
    load_model(write(path, GROUPED))


BLOCKS = replace(GROUPED, ffn=96)


def check_near_dequantized(model: Model, config: Tiny) -> None:
    """Hold logits against those of the same weights as float32."""
    ids = token_ids(config, 20)
    found = run(model.transformer, ids)
    expected = run(dequantized(model), ids)
    assert np.abs(found - expected).max() < 0.05 * np.abs(expected).max()


def dequantized(model: Model) -> LlamaTransformer:
    """Build a float32 model of the same weights."""
    tensors = {
        name: weight.dequantize()
        if isinstance(weight, ml.QuantizedTensor)
        else weight.to(ml.float32)
        for name, weight in model.tensors.items()
    }
    args = replace(model.args, dtype=ml.float32, feed_forward_dtype=None)
    return type(model.transformer)(args, tensors)


@pytest.mark.parametrize(
    "config", [BLOCKS, replace(TIED, dim=64, ffn=96)], ids=lambda c: c.name
)
def test_matrices_in_blocks_are_used_in_place(tmp_path: Path, config: Tiny) -> None:
    path = tmp_path / "a.gguf"
    blocks = {gguf_name(n): q8_0(w) for n, w in weights(config).items() if w.ndim == 2}
    model = load_model(write(path, config, tensors=blocks))
    assert model.args.dtype is ml.bfloat16
    assert model.checkpoint.mapped_bytes == path.stat().st_size
    for name, weight in model.tensors.items():
        assert str(weight.dtype) == ("float32" if "norm" in name else "q8_0")
    assert any("q8_0" in note and "in the files (q8_0)" in note for note in model.notes)
    check_near_dequantized(model, config)
    with pytest.raises(
        ModelConfigError, match=r"a model that is quantized already \(q8_0\)"
    ):
        load_model(path, quantize="nf4")


def test_one_file_may_mix_bfloat16_and_float16(tmp_path: Path) -> None:
    """Activations are float32 then, and products with bfloat16 are those of its
    elements.
    """
    kinds = (ml_dtypes.bfloat16, np.float16, np.float32)
    mixed = {
        gguf_name(name): weight.astype(kinds[number % 3])
        for number, (name, weight) in enumerate(weights(GROUPED).items())
        if weight.ndim == 2
    }
    model = load_model(write(tmp_path / "a.gguf", GROUPED, tensors=mixed))
    assert model.args.dtype is ml.float32
    assert len({str(weight.dtype) for weight in model.tensors.values()}) == 3
    ids = token_ids(GROUPED, 20)
    found = run(model.transformer, ids)
    expected = run(dequantized(model), ids)
    check_bits(found, expected)


# The matrices that are Q6_K, not Q4_K.
FINER = (
    ".wv.weight",
    ".w2.weight",
    "output.weight",
)


def k_quant(number: int, shape: tuple[int, int], seed: int) -> Stored:
    """Make random blocks of Q4_K (12) or Q6_K (14): codes and scales of all values."""
    size, places = {12: (144, {0: 2e-3, 2: 1e-2}), 14: (210, {208: 2e-5})}[number]
    rows = shape[0] * shape[1] // 256
    blocks = np.random.default_rng(seed).integers(0, 256, (rows, size), dtype=np.uint8)
    for place, scale in places.items():
        blocks[:, place : place + 2] = np.frombuffer(
            np.float16(scale).tobytes(), np.uint8
        )
    return Stored(shape, number, blocks.tobytes())


def test_a_mix_of_k_quants_as_q4_k_m_has_it_runs_on_its_blocks(tmp_path: Path) -> None:
    config = replace(GROUPED, dim=256, ffn=512)
    blocks = {
        gguf_name(name): k_quant(14 if name.endswith(FINER) else 12, weight.shape, number)
        for number, (name, weight) in enumerate(weights(config).items())
        if weight.ndim == 2
    }
    model = load_model(write(tmp_path / "a.gguf", config, tensors=blocks))
    layer = model.transformer.layers[0]
    assert (
        str(layer.attention.wq.dtype)
        == str(model.transformer.tok_embeddings.dtype)
        == "q4_k"
    )
    assert str(layer.attention.wv.dtype) == str(model.transformer.output.dtype) == "q6_k"
    check_near_dequantized(model, config)


@pytest.mark.parametrize("dtype", [ml.bfloat16, ml.float32], ids=str)
def test_a_plain_gguf_file_can_be_quantized_in_memory(
    tmp_path: Path, dtype: ml.DType
) -> None:
    path = write(tmp_path / "a.gguf", GROUPED, dtype.numpy_dtype)
    model = load_model(path, quantize="int8")
    assert model.args.dtype is dtype
    assert model.args.dtype is forecast_memory(path, None, 100, "int8").args.dtype
    assert model.transformer.layers[0].attention.wq.dtype is ml.int8_block
    assert any("quantized matrices: 15 int8_block" in note for note in model.notes)


# The tokenizer


def small_vocabulary(folder: Path) -> dict[str, Any]:
    path = folder / "tokenizer.model"
    path.write_bytes(model_message([*RESERVED, *ranked("ab", "\u2581", "a", "b")]))
    return sentencepiece_keys(read_sentencepiece_model(path))


def with_rows(rows: int) -> Tiny:
    return replace(GROUPED, vocab=rows)


@pytest.mark.parametrize("rows", [263, 300])
def test_the_tokenizer_of_a_file_may_have_fewer_tokens_than_rows(
    tmp_path: Path, rows: int
) -> None:
    path = write(tmp_path / "a.gguf", with_rows(rows), keys=small_vocabulary(tmp_path))
    model: Model = load_model(path)
    assert model.tokenizer is not None
    assert model.tokenizer.vocab_size == rows
    assert model.tokenizer.bos_id == 1
    assert model.stop_ids == {2}
    assert (
        model.tokenizer.decode(model.tokenizer.encode("ab ba", bos=False, eos=False))
        == "ab ba"
    )


def test_a_directory_that_holds_one_gguf_file_is_loaded_as_the_file(
    tmp_path: Path,
) -> None:
    directory = tmp_path / "model"
    directory.mkdir()
    path = write(directory / "a.gguf", GROUPED)
    model = load_model(directory)
    assert model.source.name == "a.gguf"  # what the server calls it
    assert model.source_directory == path
    check_bits(
        run(model.transformer, [1, 2, 3]), run(load_model(path).transformer, [1, 2, 3])
    )


@pytest.mark.parametrize(
    ("kinds", "reason"),
    [
        ("<unk>", "no unknown token"),
        ("bytes", "no byte tokens"),
    ],
)
def test_a_sentencepiece_vocabulary_that_cannot_encode_all_text_is_left_out(
    tmp_path: Path, kinds: str, reason: str
) -> None:
    """llama.cpp loads such files too, and fails where a text needs one of these
    tokens.
    """
    keys = small_vocabulary(tmp_path)
    types = keys["tokenizer.ggml.token_type"]
    left_out = {"<unk>": 2, "bytes": 6}[kinds]
    keys["tokenizer.ggml.token_type"] = [
        1 if kind == left_out else kind for kind in types
    ]
    with pytest.warns(
        UserWarning, match=f"has {reason}: the model is loaded without a tokenizer"
    ):
        model = load_model(write(tmp_path / "a.gguf", with_rows(263), keys=keys))
    assert model.tokenizer is None
    assert model.stop_ids == frozenset()
    run(model.transformer, [1, 2, 262])


@pytest.mark.parametrize("kind", ["none", "no_vocab"])
def test_a_file_may_say_that_it_has_no_vocabulary(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / "a.gguf", GROUPED, keys={"tokenizer.ggml.model": kind})
    model = load_model(path)
    assert model.tokenizer is None
    check_bits(
        run(model.transformer, [1, 2]), run(transformer(GROUPED, ml.float32), [1, 2])
    )


def test_a_tokenizer_may_have_more_tokens_than_rows_but_no_damaged_keys(
    tmp_path: Path,
) -> None:
    keys = small_vocabulary(tmp_path)
    path = write(tmp_path / "a.gguf", with_rows(262), keys=keys)
    assert (
        "the tokenizer has 263 tokens, the embeddings have 262 rows"
        in load_model(path).notes
    )
    keys["tokenizer.ggml.scores"] = [0.0]
    with pytest.raises(
        TokenizerError, match=r"key 'tokenizer.ggml.scores': expected 263 values"
    ):
        load_model(write(path, with_rows(263), keys=keys))


def test_the_chat_template_is_that_of_the_file(tmp_path: Path) -> None:
    for template in ("{{ x }}", None):
        path = write(
            tmp_path / "a.gguf", GROUPED, keys={"tokenizer.chat_template": template}
        )
        assert find_source(path).chat_templates.get("default") == template
    path = write(
        tmp_path / "a.gguf", GROUPED, keys={"tokenizer.chat_template.tool_use": "T"}
    )
    assert find_source(path).chat_templates == {"tool_use": "T"}


def test_the_chat_templates_of_a_file_are_saved_in_a_directory(tmp_path: Path) -> None:
    templates = {"tokenizer.chat_template": "D", "tokenizer.chat_template.tool_use": "T"}
    keys = small_vocabulary(tmp_path) | templates
    path = write(tmp_path / "a.gguf", replace(BLOCKS, vocab=263), keys=keys)
    save_quantized(path, tmp_path / "saved", "int8")
    assert find_source(tmp_path / "saved").chat_templates == {
        "default": "D",
        "tool_use": "T",
    }
