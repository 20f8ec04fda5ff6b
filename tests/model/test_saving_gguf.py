"""A model written as a GGUF file: the same bits when it is loaded, and llama.cpp runs it."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from src import ml
from src.checkpoint.gguf import read_gguf
from src.inference import encode_chat, find_chat_format
from src.inference.chat_encoding import template_to_write
from src.model import LlamaTransformer, ModelError, load_model
from src.model.files import BUNDLED_MODEL, CHAT_TEMPLATE_KEY
from src.model.loader import Model
from src.model.saving_gguf import save_gguf
from tests.model.families import CONFIGS, EVEN_SIZES, config_of, random_arrays, write_family
from tests.model.hugging_face_tiny import write_tiny
from tests.model.test_llama import check_bits, run
from tests.model.tiny import GROUPED
from tests.support import llama_cpp
from tests.support.hugging_face_writer import write_hugging_face_directory

QUESTION = "What is the capital of Massachusetts? Answer in one word."
IDS = [5, 17, 99, 0, 130, 64, 64, 3, 77, 12]
quantized = pytest.mark.parametrize("quantize", [None, "q8_0", "q4_0"])


def check_same(made: Model, given: Model, ids: list[int] = IDS) -> None:
    """Compare bits; where one rounds the activations of BF16 less, with the other's weights so."""
    rounding = {name: getattr(made.args, name) for name in ("dtype", "feed_forward_dtype")}
    expected = LlamaTransformer(replace(given.args, **rounding), given.tensors)
    check_bits(run(made.transformer, ids), run(expected, ids))


@quantized
@pytest.mark.parametrize("dtype", [ml.bfloat16, ml.float16, ml.float32], ids=str)
@pytest.mark.parametrize("family", CONFIGS)
def test_a_written_family_gives_the_bits_of_its_directory(
    tmp_path: Path, family: str, dtype: ml.DType, quantize: str | None
) -> None:
    source = write_family(tmp_path / "source", family, dtype, **EVEN_SIZES)
    nbytes = save_gguf(source, tmp_path / "a.gguf", quantize)
    made, given = load_model(tmp_path / "a.gguf"), load_model(source, quantize=quantize)
    check_same(made, given)
    stored = read_gguf(tmp_path / "a.gguf").tensors.values()
    assert nbytes == sum(entry.stop - entry.start for entry in stored)
    for key, weight in made.tensors.items():
        kind = ml.float32 if "norm" in key or key.endswith("bias") else given.tensors[key].dtype
        assert weight.dtype is kind
    # Neighbours are rotated together in these files, as in Meta's, and the halves in the others.
    is_meta_order = family in ("smollm3", "granite")
    assert made.args.rope_pairs == ("interleaved" if is_meta_order else "halves")
    is_bfloat16 = dtype is ml.bfloat16 and quantize is None
    assert made.args == replace(
        given.args,
        dtype=ml.float32 if is_bfloat16 else given.args.dtype,
        feed_forward_dtype=ml.bfloat16 if is_bfloat16 else None,
        rope_pairs=made.args.rope_pairs,
        norm_eps=float(np.float32(given.args.norm_eps)),
        **{
            name: value if value is None else float(np.float32(value))
            for name in ("attention_multiplier", "embedding_multiplier", "residual_multiplier")
            for value in [getattr(given.args, name)]
        },
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"attention_bias": True, "mlp_bias": True},
        {"tie_word_embeddings": True},
        {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}},
        {"model_type": "mistral", "sliding_window": 16},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_written_llama_has_its_directorys_bits(tmp_path: Path, changes: dict[str, Any]) -> None:
    config = replace(GROUPED, ffn=96)
    if changes.get("attention_bias"):
        llama = {"model_type": "llama", "use_sliding_window": None, "sliding_window": None}
        source = write_family(tmp_path / "source", "qwen2", **EVEN_SIZES | llama | changes)
    else:
        source = write_tiny(tmp_path / "source", config, ml.bfloat16, **changes)
    save_gguf(source, tmp_path / "a.gguf", "q8_0")
    made, given = load_model(tmp_path / "a.gguf"), load_model(source, quantize="q8_0")
    check_same(made, given, IDS[:4])
    assert made.args.max_context_length == given.args.max_context_length


@quantized
def test_the_bundled_model_is_written_with_its_tokenizer(
    tmp_path: Path, quantize: str | None
) -> None:
    path, given = tmp_path / "a.gguf", load_model(quantize=quantize)
    template = template_to_write(BUNDLED_MODEL, given.tokenizer)
    save_gguf(None, path, quantize, chat_template=template)
    made = load_model(path)
    assert made.tokenizer is not None
    assert given.tokenizer is not None
    check_same(made, given, list(range(5, 100, 3)))
    assert made.stop_ids == given.stop_ids
    assert made.tokenizer.adds_bos
    assert made.files.given[CHAT_TEMPLATE_KEY] == template
    found = find_chat_format(path, made.tokenizer, template)
    assert (found.name, found.by) == ("llama3", "chat template")


@pytest.mark.oracle
@quantized
def test_llama_cpp_gives_the_same_greedy_answer(tmp_path: Path, quantize: str | None) -> None:
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
        text = f"GGUF files do not have {name}, of tensor output.weight, but q8_0, q4_0"
        assert text in refused(tmp_path, None, quantize)
    odd = write_family(tmp_path / "odd", "qwen3")
    assert "rows of q4_0 must be a multiple of 32 long: got 20" in refused(tmp_path, odd, "q4_0")
    layers = write_family(tmp_path / "layers", "smollm3", no_rope_layers=[1, 0, 1, 1])
    text = "expected every fourth layer without RoPE, as smollm3 has it in GGUF files, got layers 1"
    assert text in refused(tmp_path, layers)
    save_gguf(None, tmp_path / "a.gguf", "q8_0")
    text = "save: expected a model directory, got a GGUF file"
    assert text in refused(tmp_path, tmp_path / "a.gguf")
    arrays = {
        name: array.astype(ml.float8_e4m3fn.numpy_dtype if "proj" in name else array.dtype)
        for name, array in random_arrays(load_model(odd).args, ml.bfloat16, tied=True).items()
    }
    config = config_of("qwen3", tie_word_embeddings=True)
    write_hugging_face_directory(tmp_path / "float8", config, arrays)
    text = "GGUF files do not have float8_e4m3fn, of tensor layers.0.attention.wq.weight"
    assert text in refused(tmp_path, tmp_path / "float8")
