"""Models in Hugging Face's layout: the same bits as in Meta's, and what the loader says
of them.
"""

import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from src import ml
from src.model import RopeScaling, find_source, load_model
from tests.model.hugging_face_tiny import config_of, renamed, write_tiny
from tests.model.test_llama import check_bits, run
from tests.model.tiny import (
    BYTES_VOCAB,
    CONFIGS,
    GROUPED,
    TIED,
    Tiny,
    token_ids,
    transformer,
    weights,
    write_byte_tokenizer,
    write_meta_directory,
)
from tests.support.hugging_face_writer import write_hugging_face_directory
from tests.support.safetensors_writer import write_safetensors

SCALED = next(config for config in CONFIGS if config.scaling == 8)


@pytest.mark.parametrize(
    ("config", "dtype"),
    [
        *((config, ml.bfloat16) for config in CONFIGS),
        *itertools.product((GROUPED, SCALED, TIED), (ml.float16, ml.float32)),
    ],
    ids=lambda value: value.name,
)
def test_both_layouts_give_the_bits_of_a_model_in_memory(
    tmp_path: Path, config: Tiny, dtype: ml.DType
) -> None:
    write_meta_directory(tmp_path / "meta", config, dtype)
    other = config.scaling if config.scaling > 8 else None  # than the sizes say
    meta = load_model(tmp_path / "meta", rope_scaling_factor=other)
    ours = load_model(write_tiny(tmp_path / "hf", config, dtype))
    assert (meta.args.rope_pairs, ours.args.rope_pairs) == ("interleaved", "halves")
    ids = token_ids(config, 40)
    expected = run(transformer(config, dtype), ids)
    for model in (meta, ours):
        for chunk in (0, 7):
            check_bits(run(model.transformer, ids, chunk), expected)


def misaligned(directory: Path) -> None:
    path = write_tiny(directory, GROUPED) / "model.safetensors"
    write_safetensors(path, renamed(GROUPED, weights(GROUPED)), shift=3)


def with_rotary_tables(directory: Path) -> None:
    tables = {
        f"model.layers.{n}.self_attn.rotary_emb.inv_freq": np.ones(4, np.float32)
        for n in range(7)
    }
    arrays = renamed(GROUPED, weights(GROUPED)) | tables
    write_hugging_face_directory(directory, config_of(GROUPED), arrays)


@pytest.mark.parametrize(
    ("write", "files", "note"),
    [
        (lambda path: write_tiny(path, GROUPED, shards=2), 2, ""),
        (lambda path: write_tiny(path, GROUPED, shards=5), 5, ""),
        (misaligned, 1, "21 tensors copied, which are misaligned in their file"),
        (
            lambda path: write_tiny(path, GROUPED, tie_word_embeddings=True),
            1,
            "lm_head.weight is used, although tie_word_embeddings is true",
        ),
        (
            with_rotary_tables,
            1,
            (
                r"not used: model\.layers\.0\.self_attn.*, \.\.\. \(7 in "
                r"all\)"
            ),
        ),
    ],
    ids=["2 files", "5 files", "misaligned", "tied", "rotary tables"],
)
def test_what_is_stored_otherwise_gives_the_same_bits_and_is_named_in_a_note(
    tmp_path: Path, write: Callable[[Path], object], files: int, note: str
) -> None:
    one = load_model(write_tiny(tmp_path / "one", GROUPED))
    ids = token_ids(GROUPED, 20)
    write(tmp_path / "other")
    other = load_model(tmp_path / "other")
    assert len(other.checkpoint.files) == files
    assert re.fullmatch(note, "; ".join(other.notes))
    check_bits(run(other.transformer, ids), run(one.transformer, ids))


def test_a_model_says_where_it_is_from_and_what_was_decided(tmp_path: Path) -> None:
    scaled = next(config for config in CONFIGS if config.scaling == 32)
    model = load_model(write_tiny(tmp_path / "a", scaled, ml.bfloat16, shards=2))
    assert f"{tmp_path / 'a'} (Hugging Face, 2 safetensors files)" in model.description
    assert model.notes == ("RoPE scaling factor 32 by config.json",)
    assert model.args.rope_scaling == RopeScaling(32.0, 1.0, 4.0, 8192)
    assert model.parameter_count == sum(tensor.size for tensor in model.tensors.values())
    tied = load_model(write_tiny(tmp_path / "b", TIED))
    assert tied.notes == ("output tied to tok_embeddings",)
    assert tied.transformer.output is tied.transformer.tok_embeddings
    mistral = {"model_type": "mistral", "architectures": ["MistralForCausalLM"]}
    L = GROUPED.layers
    capped = load_model(write_tiny(tmp_path / "c", GROUPED, **mistral, sliding_window=32))
    assert capped.notes == (f"window of 32 positions in {L} of {L} layers",)


def write_float8(directory: Path, dtype: ml.DType, **others: npt.NDArray[Any]) -> Path:
    """Write a model of float8 matrices and bfloat16 vectors; `others` are further
    tensors.
    """
    arrays = {
        name: weight.astype((dtype if weight.ndim == 2 else ml.bfloat16).numpy_dtype)
        for name, weight in renamed(GROUPED, weights(GROUPED)).items()
    }
    return write_hugging_face_directory(directory, config_of(GROUPED), arrays | others)


@pytest.mark.parametrize("dtype", [ml.float8_e4m3fn, ml.float8_e5m2], ids=str)
@pytest.mark.parametrize("embeddings", [None, ml.bfloat16], ids=str)
def test_float8_matrices_are_used_where_they_are_with_bfloat16_activations(
    tmp_path: Path, dtype: ml.DType, embeddings: ml.DType | None
) -> None:
    others = {}
    if embeddings is not None:
        plain = weights(GROUPED)["tok_embeddings.weight"].astype(embeddings.numpy_dtype)
        others = {"model.embed_tokens.weight": plain}
    model = load_model(write_float8(tmp_path, dtype, **others))
    assert model.args.dtype is ml.bfloat16
    wv = model.tensors["layers.1.attention.wv.weight"]
    assert isinstance(wv, ml.Tensor)
    assert wv.dtype is dtype
    expected = weights(GROUPED)["layers.1.attention.wv.weight"].astype(dtype.numpy_dtype)
    assert wv.numpy().tobytes() == expected.tobytes()
    assert model.tensors["tok_embeddings.weight"].dtype is (embeddings or dtype)
    assert model.tensors["norm.weight"].dtype is ml.bfloat16


@pytest.mark.parametrize(
    ("ends", "generation", "found"),
    [
        (2, None, (2,)),
        (2, {"eos_token_id": [5, 7]}, (5, 7)),
        (2, {"bos_token_id": 9}, (2,)),
        (None, None, ()),
        ([3], {"eos_token_id": 0}, (0,)),
    ],
)
def test_end_tokens_of_the_generation_configuration_go_first(
    tmp_path: Path, ends: object, generation: Any, found: tuple[int, ...]
) -> None:
    write_tiny(tmp_path, GROUPED, generation=generation, eos_token_id=ends)
    assert find_source(tmp_path).end_ids == found


def test_end_tokens_of_the_tokenizer_are_among_them(tmp_path: Path) -> None:
    write_tiny(tmp_path, BYTES_VOCAB, generation={"eos_token_id": 9})
    assert load_model(tmp_path).stop_ids == {9}
    write_byte_tokenizer(tmp_path / "tokenizer.model")
    model = load_model(tmp_path)
    assert model.tokenizer is not None
    assert model.stop_ids == {9} | model.tokenizer.stop_ids
