"""Opening a model directory in either layout, whole or in shards (S3, T5)."""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from src.checkpoint import Checkpoint, CheckpointError
from src.checkpoint.model_directory import shard_files
from src.checkpoint.names import rows_of
from src.model.sources import find_source
from src.model.sources.meta import args_from_params
from tests.checkpoint.refusals import refusal_of
from tests.model.tiny import Tiny
from tests.support.gguf_writer import gguf_bytes, llama_keys
from tests.support.hugging_face_writer import (
    CONFIG,
    random_arrays,
    write_hugging_face_directory,
)
from tests.support.open_directory import open_hugging_face, open_meta
from tests.support.pth_writer import whole, write_random_meta_directory
from tests.support.safetensors_writer import INDEX, write_index, write_safetensors

Q = "model.layers.1.self_attn.q_proj.weight"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "model"


def write(
    directory: Path,
    config: dict[str, Any] = CONFIG,
    arrays: Mapping[str, Any] | None = None,
    shards: int = 1,
) -> dict[str, Any]:
    """Write a directory of a configuration, and of its tensors or others."""
    given = dict(random_arrays(config) if arrays is None else arrays)
    write_hugging_face_directory(directory, config, given, shards=shards)
    return given


def weight_map_of(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / INDEX).read_text())["weight_map"]
    return found


def rewrite_index(directory: Path, **changes: object) -> None:
    """Change the file that the index names for some tensors; None takes a tensor out."""
    weight_map = weight_map_of(directory) | changes
    write_index(
        directory, {name: file for name, file in weight_map.items() if file is not None}
    )


def refusal(directory: Path, words: str = "") -> str:
    return refusal_of(
        open_hugging_face, directory, begin=directory, match=re.escape(words)
    )


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.float32])
@pytest.mark.parametrize("shards", [1, 2, 5])
def test_every_tensor_is_found_by_metas_name(
    directory: Path, dtype: Any, shards: int
) -> None:
    arrays = write(directory, CONFIG, random_arrays(CONFIG, dtype), shards)
    checkpoint = open_hugging_face(directory)
    names = {row.hugging_face: row.name for row in rows_of(3)}
    assert len(checkpoint.tensors) == len(arrays) == 3 + 9 * 3
    for name, array in arrays.items():
        tensor = checkpoint.tensors[names[name]]
        assert tensor.name == names[name]
        assert checkpoint.names_in_files[tensor.name] == name
        assert tensor.numpy().tobytes() == whole(array).tobytes()
        assert not tensor.is_writable
    sizes = {"D": 24, "H": 4, "Hh": 24, "Kh": 12, "h": 6, "F": 56, "V": 40}
    assert checkpoint.sizes == sizes
    assert set(checkpoint.dtypes) == set(checkpoint.tensors)
    assert len(checkpoint.files) == shards
    assert checkpoint.mapped_bytes == sum(
        file.stat().st_size for file in checkpoint.files
    )
    words = "a safetensors file" if shards == 1 else f"{shards} safetensors files"
    assert checkpoint.source_format == f"Hugging Face, {words}"
    checkpoint.close()


def test_a_tied_model_needs_no_output_layer_and_another_one_does(directory: Path) -> None:
    tied = CONFIG | {"tie_word_embeddings": True}
    without = write(directory, tied)
    assert "output.weight" not in open_hugging_face(directory).tensors
    write(directory, tied, random_arrays(CONFIG))
    assert "output.weight" in open_hugging_face(directory).tensors
    write(directory, CONFIG, without)
    refusal(directory, "'lm_head.weight', because tie_word_embeddings is not true")


@pytest.mark.parametrize(
    ("key", "count", "module"),
    [("attention_bias", 4, "self_attn"), ("mlp_bias", 3, "mlp")],
)
def test_biases_are_as_configured(
    directory: Path, key: str, count: int, module: str
) -> None:
    config = CONFIG | {key: True}
    biased = write(directory, config)
    found = [n for n in open_hugging_face(directory).tensors if n.endswith(".bias")]
    assert len(found) == 3 * count
    write(directory, config, random_arrays(CONFIG))
    refusal(directory, f"without 'model.layers.0.{module}.")
    write(directory, CONFIG, biased)
    refusal(directory, "also 'model.layers.0.")


def test_rotary_tables_of_old_files_are_not_used_and_named(directory: Path) -> None:
    table = "model.layers.0.self_attn.rotary_emb.inv_freq"
    arrays = random_arrays(CONFIG) | {table: np.ones(3, np.float64)}
    write(directory, CONFIG, arrays, shards=2)
    rewrite_index(directory, **{table: None})
    for _ in range(2):
        checkpoint = open_hugging_face(directory)
        assert checkpoint.unused == (table,)
        assert len(checkpoint.tensors) == 30
        write(directory, CONFIG, arrays)


def test_missing_extra_and_wrongly_shaped_tensors_are_listed(directory: Path) -> None:
    arrays = random_arrays(CONFIG)
    without = {name: array for name, array in arrays.items() if name != Q}
    for shards, file in ((2, INDEX), (1, "model.safetensors")):
        write(directory, CONFIG, without, shards)
        rule = f"{file}: tensors: expected 30 tensors by config.json"
        refusal(directory, f"{rule}, got without '{Q}' (1 in all)")
    write(
        directory, CONFIG, arrays | {f"model.layers.{n}.x": np.ones(1) for n in range(7)}
    )
    assert ", ... (7 in all)" in refusal(directory, "also 'model.layers.0.x'")
    write(directory, CONFIG | {"head_dim": 8}, arrays)
    refusal(
        directory, "'model.layers.0.self_attn.q_proj.weight' [24, 24] instead of [32, 24]"
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_size": 40, "head_dim": 10},
        {"intermediate_size": 57},
        {"num_hidden_layers": 2},
        {"num_hidden_layers": 4},
        {"num_key_value_heads": 4},
        {"vocab_size": 41},
        {"num_attention_heads": 12, "head_dim": None},
        {"num_hidden_layers": 1024},
    ],
    ids=str,
)
def test_a_configuration_that_contradicts_the_tensors_is_refused(
    directory: Path, changes: dict[str, object]
) -> None:
    arrays = write(directory)
    open_hugging_face(directory)
    write(directory, CONFIG | changes, arrays)
    refusal(directory)


@pytest.mark.parametrize("suffix", ["weight_scale", "weight_scale_inv", "input_scale"])
def test_float8_with_scales_beside_it_is_refused_by_name(
    directory: Path, suffix: str
) -> None:
    arrays = write(directory, CONFIG, random_arrays(CONFIG, ml_dtypes.float8_e4m3fn))
    open_hugging_face(directory)
    name = Q.replace("weight", suffix)
    write(directory, CONFIG, arrays | {name: np.ones(1, np.float32)})
    refusal(directory, f"got also '{name}' (1 in all)")


ESCAPES = (
    "../x.safetensors",
    "..",
    ".",
    "",
    "/etc/passwd",
    "/tmp/x.safetensors",
    "a/b.safetensors",
    "./x.safetensors",
    "a\\b.safetensors",
    "C:x.safetensors",
    "x.safetensors\0",
    "x.bin",
    "x\n.safetensors",
    "..\\..\\x.safetensors",
    3,
    None,
    ["x.safetensors"],
    {"a": 1},
)


@pytest.mark.parametrize("name", ESCAPES, ids=str)
def test_an_index_cannot_lead_out_of_the_directory(directory: Path, name: object) -> None:
    write(directory, shards=2)
    open_hugging_face(directory)
    write_index(directory, weight_map_of(directory) | {Q: name})
    write_safetensors(
        directory.parent / "x.safetensors", {Q: np.ones((24, 24), np.float32)}
    )
    refusal(directory, f"file of tensor '{Q}'")


def test_a_link_that_leads_elsewhere_is_refused(directory: Path) -> None:
    arrays = write(directory, shards=2)
    shard = sorted(directory.glob("model-*"))[1]
    shard.rename(directory.parent / "elsewhere.safetensors")
    shard.symlink_to(directory.parent / "elsewhere.safetensors")
    refusal(directory, "inside its directory, got a link that leads elsewhere")
    shard.unlink()
    (directory.parent / "elsewhere.safetensors").rename(directory / "here.safetensors")
    shard.symlink_to("here.safetensors")
    assert len(open_hugging_face(directory).tensors) == len(arrays)
    (directory.parent / "alias").symlink_to(directory)
    assert len(open_hugging_face(directory.parent / "alias").tensors) == len(arrays)


def test_the_cache_of_the_hub_links_into_its_blobs_and_nowhere_else(
    tmp_path: Path,
) -> None:
    snapshot = tmp_path / "models--x" / "snapshots" / "abc"
    blobs = tmp_path / "models--x" / "blobs"
    arrays = write(snapshot, shards=2)
    blobs.mkdir()
    for number, file in enumerate(sorted(snapshot.iterdir())):
        file.rename(blobs / str(number))
        file.symlink_to(f"../../blobs/{number}")
    assert len(open_hugging_face(snapshot).tensors) == len(arrays)
    blobs.rename(tmp_path / "elsewhere")
    blobs.symlink_to(tmp_path / "elsewhere")
    refusal(snapshot, "got a link that leads elsewhere")


def test_an_index_may_have_16_mib_and_no_more(directory: Path) -> None:
    write(directory, shards=2)
    text = (directory / INDEX).read_text()
    (directory / INDEX).write_text(text.ljust(16 << 20))
    open_hugging_face(directory)
    (directory / INDEX).write_text(text.ljust((16 << 20) + 1))
    refusal(directory, "size: expected at most 16777216 bytes, got 16777217")


def test_a_missing_shard_is_named(directory: Path) -> None:
    write(directory, shards=3)
    for shard in sorted(directory.glob("model-*"))[1:]:
        shard.unlink()
    text = refusal(directory, "without 'model-00002-of-00003.safetensors', 'model-00003")
    assert "(2 in all)" in text


def test_a_tensor_in_two_shards_is_refused(directory: Path) -> None:
    arrays = write(directory, shards=2)
    open_hugging_face(directory)
    first, _ = sorted(directory.glob("model-*"))
    names = list(arrays)
    write_safetensors(first, {name: arrays[name] for name in [*names[::2], names[1]]})
    refusal(directory, f"only those of the index, got also '{names[1]}' (1 in all)")


def test_an_index_of_very_many_files_is_refused(directory: Path) -> None:
    write(directory, shards=2)
    many = {f"t{number}": f"{number}.safetensors" for number in range(1001)}
    write_index(directory, many)
    refusal(directory, "files: expected at most 1000, got 1001")
    del many["t1000"]  # the valid twin, of which the files are missing
    write_index(directory, many)
    refusal(directory, "expected 1000 files next to it")


def test_an_index_and_its_files_must_agree(directory: Path) -> None:
    write(directory, shards=2)
    first, second = sorted(path.name for path in directory.glob("model-*"))
    weight_map = weight_map_of(directory)
    rewrite_index(directory, **{"model.norm.weight": None})
    refusal(directory, "only those of the index, got also 'model.norm.weight'")
    if (maps := Path("/proc/self/maps")).exists():
        assert str(directory) not in maps.read_text()  # a refusal leaves no file mapped
    write_index(directory, weight_map | {Q: first if weight_map[Q] == second else second})
    refusal(directory, f"'{Q}'")
    write_index(directory, weight_map | {"model.layers.0.surprise": first})
    refusal(directory, "of the index, got none for 'model.layers.0.surprise'")


BAD_INDEXES = {
    "empty": ("", "line 1 column 1"),
    "list": ("[]", "a JSON object, got a list"),
    "no map": ('{"metadata": {}}', "without 'weight_map'"),
    "list map": ('{"weight_map": []}', "got a list"),
    "empty map": ('{"weight_map": {}}', "a map of names to files"),
    "another key": ('{"weight_map": {"a": "b.safetensors"}, "x": 1}', "'x'"),
    "a name twice": (
        '{"weight_map": {"a": "b.safetensors", "a": "c.safetensors"}}',
        "'a' twice",
    ),
    "deep": ('{"weight_map": ' + "[" * 10_000, "nesting, got very many"),
}


@pytest.mark.parametrize(("text", "words"), BAD_INDEXES.values(), ids=BAD_INDEXES)
def test_a_bad_index_is_refused(directory: Path, text: str, words: str) -> None:
    write(directory, shards=2)
    (directory / INDEX).write_text(text)
    refusal(directory, words)


# Meta's layout

PARAMS = {
    "dim": 24,
    "n_layers": 2,
    "n_heads": 4,
    "n_kv_heads": 2,
    "vocab_size": 40,
    "multiple_of": 24,
    "norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "use_scaled_rope": True,
}


@pytest.mark.parametrize(
    "options",
    [
        *({"dtype": dtype} for dtype in (ml_dtypes.bfloat16, np.float16, np.float32)),
        {"tied": True},
        *(
            {"shards": shards, "embeddings_split": axis}
            for shards in (2, 4)
            for axis in (0, 1)
        ),
        *({"shards": 2, "dtype": dtype} for dtype in (np.float16, np.float32)),
    ],
    ids=str,
)
def test_a_file_or_shards_are_opened(directory: Path, options: dict[str, Any]) -> None:
    expected = write_random_meta_directory(directory, PARAMS, **options)
    checkpoint = open_meta(directory)
    assert checkpoint.tensors.keys() == expected.keys()
    checkpoint.forget_pages()  # which are read again
    for name, array in expected.items():
        tensor = checkpoint.tensors[name]
        assert (tensor.name, tensor.shape) == (name, array.shape)
        assert tensor.numpy().tobytes() == whole(array).tobytes()
    assert checkpoint.sizes == args_from_params(PARAMS).tensor_sizes
    assert set(checkpoint.dtypes.values()) == {checkpoint.tensors["norm.weight"].dtype}
    assert checkpoint.files == sorted(directory.glob("*.pth"))
    first = checkpoint.files[0].stat().st_size
    assert checkpoint.mapped_bytes == (first if len(checkpoint.files) == 1 else 0)
    checkpoint.check_unchanged()
    checkpoint.close()


@pytest.mark.parametrize(("shards", "left"), [(1, 1), (2, 0)])
def test_only_a_single_file_stays_mapped(directory: Path, shards: int, left: int) -> None:
    """When others take their place, tensors that stay may be in the single file."""
    write_random_meta_directory(directory, PARAMS, shards=shards)
    checkpoint = open_meta(directory, one_by_one=True)
    assert len(checkpoint.mapped) == shards
    checkpoint.replace_tensors({})
    assert len(checkpoint.mapped) == left
    checkpoint.close()
    assert checkpoint.mapped_bytes == 0


def test_files_that_are_not_there_are_named(directory: Path) -> None:
    write_random_meta_directory(directory, PARAMS, shards=4)
    for path, words in (
        (directory / "absent", "No such file"),
        (directory / "consolidated.00.pth", "Not a directory"),
        (directory / "a\0b", "embedded null"),
        (directory.parent, r"expected consolidated\.00\.pth and params\.json"),
    ):
        with pytest.raises(CheckpointError, match=words):
            assert shard_files(path)
    for number in (0, 2):
        (directory / f"consolidated.{number:02d}.pth").unlink()
    with pytest.raises(CheckpointError, match="no number 00, 02"):
        open_meta(directory)
    (directory / "params.json").unlink()
    with pytest.raises(CheckpointError, match=r"params\.json: cannot be opened"):
        open_meta(directory)


def test_bad_parameters_are_refused_before_any_weight_file_is_opened(
    directory: Path,
) -> None:
    write_random_meta_directory(directory, PARAMS)
    (directory / "consolidated.00.pth").write_bytes(b"never read")
    (directory / "params.json").write_text(json.dumps(PARAMS | {"n_layers": 10**9}))
    with pytest.raises(CheckpointError, match="n_layers"):
        open_meta(directory)


def test_nothing_stays_open_after_a_refusal_and_after_closing(directory: Path) -> None:
    write_random_meta_directory(directory, PARAMS, shards=2)
    before = set(os.listdir("/dev/fd"))
    open_meta(directory).close()
    second = directory / "consolidated.01.pth"
    second.write_bytes(second.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"consolidated\.01\.pth"):
        open_meta(directory)
    second.unlink()
    write_random_meta_directory(directory, PARAMS)
    checkpoint = open_meta(directory)
    kept = checkpoint.tensors["norm.weight"]
    checkpoint.mapped[0].close()
    checkpoint.forget_pages()  # of a closed file there are none
    checkpoint.close()
    assert (checkpoint.tensors, checkpoint.mapped_bytes) == ({}, 0)
    assert kept.numpy().shape == (24,)
    del kept
    assert set(os.listdir("/dev/fd")) == before


# GGUF


def test_the_tensors_of_a_gguf_file_have_metas_names(tmp_path: Path) -> None:
    sizes = {"D": 8, "Hh": 8, "Kh": 4, "F": 12, "V": 5}
    arrays = {
        r.gguf: np.ones([sizes[each] for each in r.sizes], np.float32) for r in rows_of(1)
    }
    keys = llama_keys(Tiny("tiny", 8, 1, 2, 1, 12, 5))
    path = tmp_path / "a.gguf"

    def opened(**factors: Any) -> Checkpoint:
        path.write_bytes(gguf_bytes(keys, arrays | factors))
        return find_source(path).open_checkpoint()

    checkpoint = opened()
    assert set(checkpoint.tensors) == {row.name for row in rows_of(1)}
    assert (
        checkpoint.names_in_files["layers.0.attention.wq.weight"] == "blk.0.attn_q.weight"
    )
    assert checkpoint.source_format == "GGUF version 3, a file"
    assert checkpoint.rope_factors == {}
    assert checkpoint.mapped_bytes == path.stat().st_size
    checkpoint.close()
    assert not checkpoint.mapped
    name = "rope_freqs.weight"
    assert opened(**{name: np.array([1, 8], np.float32)}).rope_factors == {
        name: (1.0, 8.0)
    }
    before = set(os.listdir("/dev/fd"))
    for factors in (np.array([1, np.nan], np.float32), np.array([1, 8], np.float16)):
        with pytest.raises(CheckpointError, match=rf"tensor '{name}': expected "):
            opened(**{name: factors})
    assert set(os.listdir("/dev/fd")) == before
