"""A model written as a GGUF file: the same bits when it is loaded,
and llama.cpp runs it.
"""

import itertools
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from src import ml
from src.checkpoint.gguf import read_gguf
from src.checkpoint.gguf_config import CHAT_TEMPLATE_KEYS
from src.inference import encode_chat, find_chat_template
from src.inference.chat_encoding import template_to_write
from src.model import InferenceContext, ModelError, load_model
from src.model.loader import Model
from src.model.rope import rotary_table
from src.model.saving import save_quantized
from src.model.saving_gguf import save_gguf
from src.model.sources import find_source
from tests.model.families import (
    CONFIGS,
    EVEN_SIZES,
    WITH_EXPERTS,
    config_of,
    random_arrays,
    write_family,
)
from tests.model.hugging_face_tiny import write_tiny
from tests.model.test_llama import check_bits, run
from tests.model.tiny import GROUPED, write_meta_directory
from tests.support import llama_cpp
from tests.support.hugging_face_writer import write_hugging_face_directory

QUESTION = "What is the capital of Massachusetts? Answer in one word."
IDS = [5, 17, 99, 0, 130, 64, 64, 3, 77, 12]
SIZES = EVEN_SIZES | {"hidden_size": 96}  # that of all heads, as qwen2 and olmo2 require
LINEAR = {"rope_type": "linear", "factor": 4.0}
LLAMA_3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
# Models of each family by the changes of their config.json.
MODELS: dict[str, dict[str, Any]] = {
    "untied": {},
    "tied": {"tie_word_embeddings": True},
    "attention biases": {"attention_bias": True},
    "feed-forward biases": {"mlp_bias": True},
    "linear RoPE": {"rope_scaling": LINEAR},
    "Llama 3.1's RoPE": {"rope_scaling": LLAMA_3},
    "large heads": {"hidden_size": 64},
}
FAMILIES = ("llama", "mistral", *CONFIGS)
NO_BIASES = "only biases that {} has in GGUF files, got biases of {}"
NO_SCALING = "linear scaling, as {} requires in GGUF files, got Llama 3.1's scaling"
# The models that llama.cpp's architectures do not have, and the reason in the error.
# qwen2, qwen3 and olmo2 ignore `mlp_bias`, and qwen2 `attention_bias`.
REJECTED = {
    ("gemma2", "attention biases"): "only biases that gemma2 has in GGUF files",
    ("gemma2", "Llama 3.1's RoPE"): "RoPE without or with linear scaling",
    ("gemma3_text", "attention biases"): "only biases that gemma3 has in GGUF files",
    ("gemma3_text", "Llama 3.1's RoPE"): "RoPE without or with linear scaling",
    ("qwen3", "attention biases"): NO_BIASES.format("qwen3", "wo"),
    ("smollm3", "attention biases"): NO_BIASES.format("smollm3", "wo"),
    ("smollm3", "feed-forward biases"): NO_BIASES.format("smollm3", "w1, w2, w3"),
    ("olmo2", "attention biases"): NO_BIASES.format("olmo2", "wq, wk, wv, wo"),
    ("olmo3", "attention biases"): NO_BIASES.format("olmo2", "wq, wk, wv, wo"),
    ("olmo3", "Llama 3.1's RoPE"): NO_SCALING.format("olmo2"),
    ("olmo3", "large heads"): "as olmo2 requires in GGUF files, got 6 x 16",
    ("qwen3_moe", "attention biases"): NO_BIASES.format("qwen3moe", "wq, wk, wv, wo"),
    ("qwen3_moe", "Llama 3.1's RoPE"): NO_SCALING.format("qwen3moe"),
    ("olmoe", "large heads"): "as olmoe requires in GGUF files, got 6 x 16",
    **{
        (family, "Llama 3.1's RoPE"): NO_SCALING.format(family)
        for family in ("qwen2", "qwen3", "smollm3", "olmo2")
    },
    **{
        (family, "large heads"): f"as {family} requires in GGUF files, got 6 x 16"
        for family in ("qwen2", "olmo2")
    },
}
# A model of this family always has YaRN.
UNKNOWN = {("ministral3", "linear RoPE"), ("ministral3", "Llama 3.1's RoPE")}
# A few models of families with experts suffice.
OF_EXPERTS = ("untied", "tied", "linear RoPE")
WRITTEN = [
    pair
    for pair in itertools.product(FAMILIES, MODELS)
    if pair not in REJECTED
    and pair not in UNKNOWN
    and (pair[0] not in WITH_EXPERTS or pair[1] in OF_EXPERTS)
]
quantized = pytest.mark.parametrize("quantize", [None, "q8_0", "q4_0"])


def check_same(made: Model, given: Model, ids: list[int] = IDS) -> None:
    """Compare bits; where one rounds the activations of BF16 less, with the other's
    weights so.
    """
    rounding = {
        name: getattr(made.args, name) for name in ("dtype", "feed_forward_dtype")
    }
    expected = type(given.transformer)(replace(given.args, **rounding), given.tensors)
    check_bits(run(made.transformer, ids), run(expected, ids))


@quantized
@pytest.mark.parametrize("dtype", [ml.bfloat16, ml.float16, ml.float32], ids=str)
@pytest.mark.parametrize("family", CONFIGS)
def test_a_written_family_gives_the_bits_of_its_directory(
    tmp_path: Path, family: str, dtype: ml.DType, quantize: str | None
) -> None:
    source = write_family(tmp_path / "source", family, dtype, **SIZES)
    nbytes = save_gguf(source, tmp_path / "a.gguf", quantize)
    made = load_model(tmp_path / "a.gguf")
    given = load_model(source, quantize=quantize)
    check_same(made, given)
    stored = read_gguf(tmp_path / "a.gguf").tensors.values()
    assert nbytes == sum(entry.stop - entry.start for entry in stored)
    for key, weight in made.tensors.items():
        kind = (
            ml.float32
            if len(weight.shape) == 1 or "router" in key
            else given.tensors[key].dtype
        )
        assert weight.dtype is kind
    # Neighbours are rotated together in these files, as in Meta's, and the halves in the
    # others.
    is_meta_order = family in (
        "smollm3",
        "granite",
        "granite_swa",
        "granitemoe",
        "ministral3",
        "mixtral",
    )
    assert made.args.rope_pairs == ("interleaved" if is_meta_order else "halves")
    is_bfloat16 = dtype is ml.bfloat16 and quantize is None
    assert made.args == replace(
        given.args,
        dtype=ml.float32 if is_bfloat16 else given.args.dtype,
        feed_forward_dtype=ml.bfloat16 if is_bfloat16 else None,
        rope_pairs=made.args.rope_pairs,
        norm_offset=made.args.norm_offset,
        norm_eps=float(np.float32(given.args.norm_eps)),
        **{
            name: float(np.float32(value))
            for name, value in vars(given.args).items()
            if name.endswith("_multiplier")
        },
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"attention_bias": True, "mlp_bias": True},
        {"tie_word_embeddings": True},
        {
            "rope_parameters": {
                "rope_type": "linear",
                "factor": 4.0,
                "rope_theta": 10000.0,
            }
        },
        {"model_type": "mistral", "sliding_window": 16},
        {
            "model_type": "ministral",
            "sliding_window": 16,
            "layer_types": ["full_attention", "sliding_attention"],
        },
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_written_llama_has_its_directorys_bits(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    config = replace(GROUPED, ffn=96)
    if changes.get("attention_bias"):
        llama = {
            "model_type": "llama",
            "use_sliding_window": None,
            "sliding_window": None,
        }
        source = write_family(
            tmp_path / "source", "qwen2", **EVEN_SIZES | llama | changes
        )
    else:
        source = write_tiny(tmp_path / "source", config, ml.bfloat16, **changes)
    save_gguf(source, tmp_path / "a.gguf", "q8_0")
    made = load_model(tmp_path / "a.gguf")
    given = load_model(source, quantize="q8_0")
    check_same(made, given, IDS[:4])
    longest = changes.get("sliding_window", given.args.max_context_length)
    assert made.args.max_context_length == longest


@quantized
def test_the_bundled_model_is_written_with_its_tokenizer(
    tmp_path: Path, quantize: str | None
) -> None:
    path = tmp_path / "a.gguf"
    given = load_model(quantize=quantize)
    template = template_to_write(given.source)
    save_gguf(None, path, quantize, chat_template=template)
    made = load_model(path)
    assert made.tokenizer is not None
    assert given.tokenizer is not None
    check_same(made, given, list(range(5, 100, 3)))
    assert made.stop_ids == given.stop_ids
    assert made.tokenizer.adds_bos
    assert made.source.given[CHAT_TEMPLATE_KEYS["default"]] == template
    found = find_chat_template(made.source, made.tokenizer)
    assert (found.text, found.by) == (template, "chat template")


def test_the_templates_of_a_model_are_written_and_read_back(tmp_path: Path) -> None:
    source = write_tiny(tmp_path / "source", GROUPED, ml.bfloat16)
    templates = {"default": "D", "tool_use": "T"}
    entries = [{"name": name, "template": text} for name, text in templates.items()]
    config = json.dumps({"chat_template": [*entries, {"name": "rag", "template": "R"}]})
    (source / "tokenizer_config.json").write_text(config)
    save_gguf(source, tmp_path / "a.gguf")
    assert find_source(tmp_path / "a.gguf").chat_templates == templates


@pytest.mark.oracle
@quantized
def test_llama_cpp_gives_the_same_greedy_answer(
    tmp_path: Path, quantize: str | None
) -> None:
    llama_cpp.needed()
    save_gguf(None, path := tmp_path / "a.gguf", quantize)
    tokenizer = load_model(path).tokenizer
    assert tokenizer is not None
    with llama_cpp.LlamaCpp(path) as model:
        assert model.special_ids == (tokenizer.bos_id, tokenizer.eos_id, True)
        for text in (QUESTION, "  a\n\n b\t12345 it's \u00e9\u65e5\U0001f600"):
            assert model.tokenize(text) == tokenizer.encode(text, bos=False, eos=False)
        ids = encode_chat(tokenizer, [{"role": "user", "content": QUESTION}])
        answer = [int(model.run(ids).argmax())]
        while answer[-1] not in tokenizer.stop_ids:
            answer.append(int(model.run(answer[-1:]).argmax()))
    assert tokenizer.decode(answer) == "Boston<|eot_id|>"


def logits_of(model: Model) -> Any:
    context = InferenceContext(model.args, 64)
    return model.transformer.forward(context, IDS, 0, all_positions=True).numpy()


def check_with_llama_cpp(path: Path, source: Model) -> None:
    """Compare logits; in float32 both differ by the rounding of llama.cpp's cache to
    float16.
    """
    ours = logits_of(source)
    np.testing.assert_array_equal(logits_of(load_model(path)), ours)
    with llama_cpp.LlamaCpp(path) as other:
        theirs = other.run_each(IDS)
    assert np.abs(theirs - ours).max() < 2e-3 * np.abs(ours).max()


def write_model(place: Path, family: str, model: str) -> Path:
    """Write the directory of a family; Llama's and Mistral's with the keys that all
    have.
    """
    if family in CONFIGS:
        return write_family(place, family, ml.float32, **SIZES | MODELS[model])
    changes = {"model_type": family} | MODELS[model]
    return write_family(place, "olmo2", ml.float32, **SIZES | changes)


@pytest.mark.oracle
@pytest.mark.parametrize(("family", "model"), WRITTEN)
def test_llama_cpp_loads_each_family_that_is_written(
    tmp_path: Path, family: str, model: str
) -> None:
    llama_cpp.needed()
    source = write_model(tmp_path / "source", family, model)
    save_gguf(source, tmp_path / "a.gguf")
    check_with_llama_cpp(tmp_path / "a.gguf", load_model(source))


@pytest.mark.parametrize(("family", "model"), REJECTED)
def test_a_model_that_the_architecture_does_not_have_is_refused(
    tmp_path: Path, family: str, model: str
) -> None:
    source = write_model(tmp_path / "source", family, model)
    load_model(source)
    for quantize in (None, "q8_0"):
        assert REJECTED[family, model] in refused(tmp_path, source, quantize)


@pytest.mark.oracle
@pytest.mark.parametrize("name", ["gqa", "scaled", "tied"])
def test_llama_cpp_loads_a_directory_in_metas_layout(tmp_path: Path, name: str) -> None:
    llama_cpp.needed()
    changes: dict[str, Any] = {
        "gqa": {},
        "scaled": {"scaling": 8.0},
        "tied": {"tied": True},
    }
    source = write_meta_directory(
        tmp_path / "source", replace(GROUPED, vocab=131, **changes[name])
    )
    save_gguf(source, tmp_path / "a.gguf")
    check_with_llama_cpp(tmp_path / "a.gguf", load_model(source))


@pytest.mark.parametrize("quantize", [None, "q8_0"])
def test_the_output_of_a_tied_olmo_2_is_written_separately(
    tmp_path: Path, quantize: str | None
) -> None:
    source = write_family(
        tmp_path / "source", "olmo2", ml.float32, **SIZES, tie_word_embeddings=True
    )
    nbytes = save_gguf(source, tmp_path / "a.gguf", quantize)
    made = load_model(tmp_path / "a.gguf")
    check_same(made, load_model(source, quantize=quantize))
    stored = read_gguf(tmp_path / "a.gguf").tensors
    assert nbytes == sum(entry.stop - entry.start for entry in stored.values())
    output = stored["output.weight"]
    table = stored["token_embd.weight"]
    assert output.shape == table.shape
    assert (output.dtype is table.dtype) == (quantize is None)


@pytest.mark.parametrize(
    "more",
    [{}, {"attention_factor": 1.5}, {"mscale": 1.0, "mscale_all_dim": 0.5}],
    ids=str,
)
def test_yarn_is_written_and_read_back(tmp_path: Path, more: dict[str, float]) -> None:
    yarn = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 1024}
    source = write_family(
        tmp_path / "source", "qwen3", ml.float32, **SIZES, rope_scaling=yarn | more
    )
    given = load_model(source).args
    assert given.max_context_length == 8192
    save_gguf(source, tmp_path / "a.gguf")
    made = load_model(tmp_path / "a.gguf")
    assert made.args.max_context_length == 8192
    frequencies = [rotary_table(args, 9).numpy() for args in (made.args, given)]
    np.testing.assert_allclose(*frequencies, rtol=1e-6)
    save_quantized(tmp_path / "a.gguf", tmp_path / "back", "nf4")
    assert load_model(tmp_path / "back").args.rope_scaling == made.args.rope_scaling
    for key, value, words in (
        ("truncate", False, "as qwen3 requires in GGUF files, got truncate false"),
        ("beta_fast", 8.0, "as qwen3 requires in GGUF files, got 8 and 1"),
    ):
        scaling = yarn | {key: value}
        other = write_family(
            tmp_path / key, "qwen3", ml.float32, **SIZES, rope_scaling=scaling
        )
        assert words in refused(tmp_path, other)


def refused(tmp_path: Path, source: Path | None, quantize: str | None = None) -> str:
    """Give the one line of a refusal, after which nothing is left."""
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(ModelError) as caught:
        save_gguf(source, tmp_path / "new.gguf", quantize)
    assert sorted(os.listdir(tmp_path)) == before
    assert str(caught.value).isprintable()
    return str(caught.value)


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    for quantize, name in (("nf4", "nf4"), ("int8", "int8_block")):
        text = (
            "[save] tensor output.weight must have a dtype of GGUF files, such as q8_0 or "
            f"q4_0: got {name}"
        )
        assert text in refused(tmp_path, None, quantize)
    odd = write_family(tmp_path / "odd", "qwen3")
    assert "rows of q4_0 must be a multiple of 32 long: got 20" in refused(
        tmp_path, odd, "q4_0"
    )
    layers = write_family(tmp_path / "layers", "smollm3", no_rope_layers=[1, 0, 1, 1])
    text = (
        "expected every fourth layer without RoPE, as smollm3 requires in GGUF files, "
        "got layers 1"
    )
    assert text in refused(tmp_path, layers)
    save_gguf(None, tmp_path / "a.gguf", "q8_0")
    text = (
        "quantize: expected plain weights, got a model that is quantized already (q8_0); "
        "dequant"
    )
    assert text in refused(tmp_path, tmp_path / "a.gguf")
    arrays = {
        name: array.astype(
            ml.float8_e4m3fn.numpy_dtype if "proj" in name else array.dtype
        )
        for name, array in random_arrays(
            load_model(odd).args, ml.bfloat16, tied=True
        ).items()
    }
    config = config_of("qwen3", tie_word_embeddings=True)
    write_hugging_face_directory(tmp_path / "float8", config, arrays)
    text = (
        "[save] tensor layers.0.attention.wq.weight must have a dtype of GGUF files, such "
        "as q8_0 or q4_0: got float8_e4m3fn"
    )
    assert text in refused(tmp_path, tmp_path / "float8")
