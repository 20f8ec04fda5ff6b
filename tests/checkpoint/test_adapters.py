"""Reading LoRA adapters: bad inputs, each a change of the valid one that is read first."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from src import ml
from src.checkpoint.adapters import AdapterBase, AdapterFile, read_adapter
from tests.checkpoint.refusals import refusal_of
from tests.model.tiny import GROUPED, TIED
from tests.support.adapters import (
    RandomPair,
    gguf_arrays,
    peft_arrays,
    peft_config,
    random_pairs,
    write_gguf,
    write_mlx,
    write_peft,
)
from tests.support.bounds import check_bounds
from tests.support.safetensors_writer import write_safetensors

ARGS = GROUPED.args()
BASE = AdapterBase(ARGS.tensor_rows, ARGS.tensor_sizes, "llama", has_output=True)
RANK = 4
MODULES = ["q_proj", "down_proj"]
PAIRS = random_pairs(ARGS, RANK, modules="q_proj down_proj")
NAME = "base_model.model.model.layers.1.self_attn.q_proj"
Arrays = dict[str, Any]


def read(path: Path) -> AdapterFile:
    return read_adapter(path, BASE)


def write(
    directory: Path,
    change_config: Callable[[dict[str, Any]], object] = lambda _: None,
    change_arrays: Callable[[Arrays], object] = lambda _: None,
) -> Path:
    """Writes a peft adapter, after changes of the config and the arrays of a valid one."""
    directory.mkdir(exist_ok=True)
    config = peft_config(RANK, 8, MODULES)
    arrays = peft_arrays(PAIRS)
    change_config(config)
    change_arrays(arrays)
    (directory / "adapter_config.json").write_text(json.dumps(config), "utf-8")
    write_safetensors(directory / "adapter_model.safetensors", arrays)
    return directory


def refused(path: Path, words: str) -> None:
    refusal_of(read, path, match=re.escape(words), most=900)


def without(*keys: str) -> Callable[[dict[str, Any]], None]:
    def change(values: dict[str, Any]) -> None:
        for key in keys:
            del values[key]

    return change


def test_an_adapter_of_peft_is_read(tmp_path: Path) -> None:
    file = read(write(tmp_path / "a"))
    assert (file.kind, file.ranks) == ("peft", (RANK,))
    assert set(file.pairs) == {
        f"layers.{layer}.{name}.weight"
        for layer in range(2)
        for name in ("attention.wq", "feed_forward.w2")
    }
    pair = file.pairs["layers.1.attention.wq.weight"]
    expected = PAIRS["model.layers.1.self_attn.q_proj"]
    np.testing.assert_array_equal(pair.a.numpy(), expected.a)
    np.testing.assert_array_equal(pair.b.numpy(), expected.b)
    assert pair.scale == 2.0


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_matrices_keep_their_dtype(tmp_path: Path, dtype: Any) -> None:
    def narrow(arrays: Arrays) -> None:
        arrays.update({name: array.astype(dtype) for name, array in arrays.items()})

    pair = read(write(tmp_path / "a", change_arrays=narrow)).pairs
    assert {x.a.dtype.numpy_dtype for x in pair.values()} == {np.dtype(dtype)}


@pytest.mark.parametrize(
    ("changes", "scale"),
    [
        ({}, 2.0),
        ({"lora_alpha": -6}, -1.5),
        ({"use_rslora": True}, 4.0),
        ({"alpha_pattern": {"q_proj": 12}}, 3.0),
        ({"alpha_pattern": {r"layers\.1\..*q_proj": 12, "q_proj": 1}}, 3.0),
        ({"alpha_pattern": {r"layers\.0\..*": 12}}, 2.0),
        ({"target_modules": r".*\.(q_proj|down_proj)"}, 2.0),
        ({"target_modules": ["q_proj", "mlp.down_proj"]}, 2.0),
        ({"layers_to_transform": [0, 1]}, 2.0),
        ({"layers_to_transform": [0, 1], "layers_pattern": "layers"}, 2.0),
        ({"exclude_modules": ["v_proj"]}, 2.0),
        ({"r": 9, "rank_pattern": {"q_proj": 4, "down_proj": 4}}, 2.0),
        ({"use_dora": False, "modules_to_save": None, "new_key": None}, 2.0),
        ({"init_lora_weights": "gaussian", "peft_version": "0.21.0"}, 2.0),
    ],
    ids=str,
)
def test_the_config_determines_the_scale(
    tmp_path: Path, changes: dict[str, Any], scale: float
) -> None:
    file = read(write(tmp_path / "a", lambda config: config.update(changes)))
    assert file.pairs["layers.1.attention.wq.weight"].scale == scale


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"peft_type": "LOHA"}, "peft_type: expected 'LORA', got 'LOHA'"),
        ({"r": 0}, "r: expected an integer in 1..8192, got 0"),
        ({"r": True}, "r: expected an integer in 1..8192, got true"),
        ({"lora_alpha": "8"}, "lora_alpha: expected a number in -1e+06..1e+06, got '8'"),
        ({"lora_alpha": 1e300}, "lora_alpha: expected a number"),
        ({"target_modules": None}, "without 'target_modules'"),
        ({"target_modules": ["q_proj"]}, "expected only modules in target_modules, got"),
        (
            {"target_modules": [*MODULES, "v_proj"]},
            "tensors: expected matrices of the 6 modules in target_modules, got none of "
            "'model.layers.0.self_attn.v_proj'",
        ),
        ({"target_modules": "("}, "target_modules: expected a pattern, got '('"),
        ({"target_modules": "(" * 4000}, "target_modules: expected a pattern"),
        ({"target_modules": "x" * 5000}, "a pattern of at most 4096 characters"),
        (
            {"target_modules": r"(.*)(.*)(.*)(.*)(.*)(.*)(.*)\1\2\3\4\5\6\7[^\w.]"},
            "target_modules: expected patterns that match within 0.5 s, got a slow one",
        ),
        ({"layers_to_transform": [0]}, "only modules in target_modules, got also"),
        ({"layers_to_transform": -1}, "layers_to_transform: expected layer numbers"),
        ({"r": 8}, "rank of 'model.layers.0.mlp.down_proj': expected 8, got 4"),
        ({"rank_pattern": {"q_proj": 8}}, "expected 8, got 4"),
        ({"rank_pattern": {"q_proj": "8"}}, "rank_pattern: expected an object whose"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save: expected null or false"),
        ({"bias": "lora_only"}, "bias: expected 'none', got 'lora_only'"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out: expected false, got true"),
        ({"use_dora": True}, "use_dora: expected null or false (not supported: DoRA)"),
        ({"lora_bias": True}, "lora_bias: expected null or false"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights: expected true or false"),
        ({"loftq_config": {"loftq_bits": 4}}, "loftq_config: expected null or false"),
        ({"use_new": True}, "keys: expected only known keys, got 'use_new' (1 in all)"),
    ],
    ids=str,
)
def test_a_wrong_config_is_refused_by_its_key(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    directory = write(tmp_path / "a", lambda config: config.update(changes))
    check_bounds(lambda: refused(directory, words))


def set_to(name: str, array: Any) -> Callable[[Arrays], None]:
    return lambda arrays: arrays.update({name: array})


def zeros(*shape: int, dtype: Any = np.float32) -> Any:
    return np.zeros(shape, dtype)


NOT_A_NUMBER = PAIRS["model.layers.1.self_attn.q_proj"].b.copy()
NOT_A_NUMBER[3, 2] = np.nan
INFINITE = NOT_A_NUMBER.copy()
INFINITE[3, 2] = np.inf


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            set_to(f"{NAME}.lora_A.weight", zeros(RANK, 63)),
            f"tensor '{NAME}.lora_A.weight': shape: expected [4, 64] by the base model, "
            "got [4, 63]",
        ),
        (
            set_to(f"{NAME}.lora_B.weight", zeros(64, 5)),
            "expected [64, 4] by the base model, got [64, 5]",
        ),
        (set_to(f"{NAME}.lora_A.weight", zeros(0, 64)), "got [0, 64]"),
        (set_to(f"{NAME}.lora_A.weight", zeros(64)), "got [64]"),
        (
            without(f"{NAME}.lora_B.weight"),
            "expected matrices A and B of each module, got no B of "
            "'model.layers.1.self_attn.q_proj' (1 in all)",
        ),
        (
            without(f"{NAME}.lora_A.weight", f"{NAME}.lora_B.weight"),
            "got none of 'model.layers.1.self_attn.q_proj' (1 in all)",
        ),
        (
            set_to(f"{NAME.replace('.1.', '.2.')}.lora_A.weight", zeros(RANK, 64)),
            "modules: expected only matrices of the base model, got also "
            "'model.layers.2.self_attn.q_proj' (1 in all)",
        ),
        (
            set_to("base_model.model.model.norm.lora_A.weight", zeros(RANK, 64)),
            "got also 'model.norm' (1 in all)",
        ),
        (set_to("x", zeros(1)), "tensor 'x': expected a name base_model.model.NAME"),
        (
            set_to(f"{NAME}.lora_magnitude_vector.weight", zeros(64)),
            "expected a name base_model.model.NAME",
        ),
        (
            set_to(f"{NAME}.lora_embedding_A", zeros(RANK, 64)),
            "expected one matrix A of 'model.layers.1.self_attn.q_proj', got another",
        ),
        (lambda arrays: arrays.clear(), "tensors: expected matrices A and B, got none"),
        (
            set_to(f"{NAME}.lora_B.weight", NOT_A_NUMBER),
            f"tensor '{NAME}.lora_B.weight': expected finite elements, got NaN or an "
            "infinite one",
        ),
        (set_to(f"{NAME}.lora_B.weight", INFINITE), "expected finite elements"),
        (
            set_to(f"{NAME}.lora_A.weight", zeros(RANK, 64, dtype=np.int8)),
            "expected a dtype among F32, BF16, F16, got I8",
        ),
        (
            set_to("base_model.model.lm_head.base_layer.weight", zeros(7, 64)),
            "expected the shape [101, 64] of the base model, got [7, 64]",
        ),
    ],
)
def test_wrong_matrices_are_refused_by_their_names(
    tmp_path: Path, change: Callable[[Arrays], None], words: str
) -> None:
    refused(write(tmp_path / "a", change_arrays=change), words)


def test_a_copy_of_the_embeddings_is_not_read(tmp_path: Path) -> None:
    name = "base_model.model.model.embed_tokens.weight"
    change = set_to(name, zeros(ARGS.vocab_size, ARGS.dim))
    assert len(read(write(tmp_path / "a", change_arrays=change)).pairs) == 4


def test_files_that_are_not_there_are_named(tmp_path: Path) -> None:
    refused(tmp_path / "none", "path: expected a directory of peft or mlx, or a GGUF")
    empty = tmp_path / "empty"
    empty.mkdir()
    refused(empty, "files: expected adapter_config.json of peft or mlx, or the path of a")
    directory = write(tmp_path / "a")
    weights = directory / "adapter_model.safetensors"
    weights.rename(directory / "other.safetensors")
    refused(directory, "files: expected adapter_model.safetensors, got 'adapter_config")
    (directory / "adapter_model.bin").write_bytes(b"\x80\x04.")
    refused(directory, "got adapter_model.bin, which is not read")
    refused(directory / "adapter_model.bin", "kind: expected a GGUF file, got a bare")
    (directory / "other.safetensors").rename(weights)
    assert read(directory).pairs


def test_a_link_that_leads_elsewhere_is_refused(tmp_path: Path) -> None:
    directory = write(tmp_path / "a")
    weights = directory / "adapter_model.safetensors"
    weights.rename(tmp_path / "weights")
    weights.symlink_to(tmp_path / "weights")
    refusal_of(read, directory)


def test_more_tensors_than_a_file_may_have_are_refused(tmp_path: Path) -> None:
    directory = write(tmp_path / "a")
    count = 10**6
    header = b",".join(
        b'"%d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}' % n for n in range(count)
    )
    content = b"{" + header + b"}"
    data = len(content).to_bytes(8, "little") + content
    (directory / "adapter_model.safetensors").write_bytes(data)
    refused(directory, "header length: expected at most 16777216 bytes, got")


# mlx


def test_an_adapter_of_mlx_is_read_transposed(tmp_path: Path) -> None:
    file = read(write_mlx(tmp_path / "a", PAIRS, scale=-3.0))
    assert (file.kind, file.ranks) == ("mlx", (RANK,))
    pair = file.pairs["layers.0.feed_forward.w2.weight"]
    expected = PAIRS["model.layers.0.mlp.down_proj"]
    np.testing.assert_array_equal(pair.a.numpy(), expected.a)
    np.testing.assert_array_equal(pair.b.numpy(), expected.b)
    assert pair.scale == -3.0


@pytest.mark.parametrize("base", [BASE, None], ids=["separate", "tied"])
def test_embeddings_of_mlx_also_change_a_tied_output(
    tmp_path: Path, base: AdapterBase | None
) -> None:
    args = ARGS if base else TIED.args()
    base = base or AdapterBase(args.tensor_rows, args.tensor_sizes, "llama", False)
    pairs = random_pairs(args, RANK, modules="embed_tokens")
    file = read_adapter(write_mlx(tmp_path / "a", pairs, 1.0), base)
    table = file.pairs["tok_embeddings.weight"]
    assert table.a.shape == (RANK, args.vocab_size)
    assert table.b.shape == (args.dim, RANK)
    assert ("output.weight" in file.pairs) is not base.has_output
    if not base.has_output:
        output = file.pairs["output.weight"]
        np.testing.assert_array_equal(output.a.numpy(), table.b.numpy().T)
        np.testing.assert_array_equal(output.b.numpy(), table.a.numpy().T)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"fine_tune_type": "dora"}, "fine_tune_type: expected 'lora', got 'dora'"),
        ({"fine_tune_type": "full"}, "fine_tune_type: expected 'lora', got 'full'"),
        ({"lora_parameters": 3}, "lora_parameters: expected an object, got 3"),
        ({"lora_parameters": {"rank": 4}}, "lora_parameters: keys: expected"),
        ({"lora_parameters": {"rank": 8, "scale": 1}}, "expected 8, got 4"),
        ({"lora_parameters": {"rank": 4, "scale": []}}, "scale: expected a number"),
    ],
    ids=str,
)
def test_a_wrong_config_of_mlx_is_refused(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    directory = write_mlx(tmp_path / "a", PAIRS, 1.0)
    path = directory / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    refused(directory, words)


def test_a_wrong_name_of_mlx_is_refused(tmp_path: Path) -> None:
    pairs = PAIRS | {"model.norm": RandomPair(zeros(RANK, 64), zeros(64, RANK))}
    refused(write_mlx(tmp_path / "a", pairs, 1.0), "got also 'model.norm' (1 in all)")
    directory = write_mlx(tmp_path / "b", PAIRS, 1.0)
    write_safetensors(directory / "adapters.safetensors", {"x.m": zeros(3)})
    refused(directory, "tensor 'x.m': expected a name NAME.lora_a or NAME.lora_b")


# llama.cpp


def gguf(path: Path, arrays: Arrays | None = None, **changes: Any) -> Path:
    arrays = gguf_arrays(PAIRS, ARGS, is_interleaved=False) if arrays is None else arrays
    return write_gguf(path, arrays, **changes)


@pytest.mark.parametrize(("alpha", "scale"), [(8.0, 2.0), (-2.0, -0.5), (0.0, 1.0)])
def test_an_adapter_of_llama_cpp_is_read(
    tmp_path: Path, alpha: float, scale: float
) -> None:
    file = read(gguf(tmp_path / "a.gguf", alpha=alpha))
    assert (file.kind, file.ranks) == ("llama.cpp", (RANK,))
    pair = file.pairs["layers.0.attention.wq.weight"]
    expected = PAIRS["model.layers.0.self_attn.q_proj"]
    np.testing.assert_array_equal(pair.a.numpy(), expected.a)
    np.testing.assert_array_equal(pair.b.numpy(), expected.b)
    assert pair.scale == scale


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"general_type": "model"}, "general.type: expected 'adapter', got 'model'"),
        ({"adapter_type": "control_vector"}, "adapter.type: expected 'lora', got"),
        ({"architecture": "qwen2"}, "expected llama, the architecture of the base model"),
        ({"general_architecture": 3}, "the architecture of the base model, got 3"),
        ({"alpha": float("nan")}, "adapter.lora.alpha: expected a number"),
    ],
    ids=str,
)
def test_a_wrong_key_of_llama_cpp_is_refused(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    refused(gguf(tmp_path / "a.gguf", **changes), words)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (set_to("x", zeros(3)), "expected a name NAME.weight.lora_a or NAME.weight.lora"),
        (set_to("blk.7.attn_q.weight.lora_a", zeros(4, 64)), "got also 'blk.7.attn_q'"),
        (without("blk.0.attn_q.weight.lora_a"), "got no A of 'blk.0.attn_q' (1 in all)"),
        (set_to("blk.0.attn_q.weight.lora_a", zeros(4, 63)), "expected [4, 64] by the"),
        (set_to("blk.0.attn_q.weight.lora_b", NOT_A_NUMBER), "expected finite elements"),
    ],
)
def test_wrong_matrices_of_llama_cpp_are_refused(
    tmp_path: Path, change: Callable[[Arrays], None], words: str
) -> None:
    arrays = gguf_arrays(PAIRS, ARGS, is_interleaved=False)
    change(arrays)
    refused(gguf(tmp_path / "a.gguf", arrays), words)


def test_blocks_are_dequantized(tmp_path: Path) -> None:
    pairs = random_pairs(ARGS, 32, modules="q_proj")
    arrays: Any = gguf_arrays(pairs, ARGS, is_interleaved=False)
    blocks = {n: ml.quantize(ml.Tensor.from_numpy(x), "q8_0") for n, x in arrays.items()}
    file = read(write_gguf(tmp_path / "a.gguf", blocks))
    pair = file.pairs["layers.0.attention.wq.weight"]
    expected = blocks["blk.0.attn_q.weight.lora_b"].dequantize().numpy()
    np.testing.assert_array_equal(pair.b.numpy(), expected)


def test_another_file_is_refused_by_its_kind(tmp_path: Path) -> None:
    directory = write_peft(tmp_path / "a", PAIRS)
    path = directory / "adapter_model.safetensors"
    refused(path, "kind: expected a GGUF file, got a safetensors file")
