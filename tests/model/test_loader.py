import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import product, starmap
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import ml_dtypes
import numpy as np
import pytest

from src import ml
from src.checkpoint.gguf import DTYPES, nbytes_of
from src.ml.errors import LlamaBoltsError
from src.model import (
    InferenceContext,
    Model,
    NotEnoughMemoryError,
    load_model,
)
from src.model.sources import Source
from src.tokenizer import TokenizerError
from tests.checkpoint.test_hugging_face_config import LLAMA_2_7B, LLAMA_3_2_1B
from tests.model.test_gguf import FINER
from tests.model.test_llama import check_bits, run
from tests.model.tiny import (
    BYTES_VOCAB,
    CONFIGS,
    GROUPED,
    Tiny,
    shapes,
    token_ids,
    transformer,
    weights,
    write_byte_tokenizer,
    write_meta_directory,
)
from tests.support.gguf_writer import (
    F32,
    byte_level_keys,
    entry,
    gguf_name,
    header,
    key,
    llama_keys,
)
from tests.support.hugging_face_writer import write_hugging_face_directory, zero_arrays
from tests.support.pth_writer import split_tensor, write_pth
from tests.tokenizer.json_files import byte_letters, byte_level_file


def test_a_model_knows_its_parts(tmp_path: Path) -> None:
    model = load_model(
        write_meta_directory(tmp_path, BYTES_VOCAB, ml.bfloat16, tokenizer=True)
    )
    assert isinstance(model, Model)
    assert model.args.vocab_size == 512
    assert model.tokenizer is not None
    assert model.tokenizer.vocab_size == 512
    assert (
        model.transformer.layers[1].attention.wq
        is model.tensors["layers.1.attention.wq.weight"]
    )
    assert not model.transformer.tok_embeddings.numpy().flags.writeable
    assert model.source_directory == tmp_path
    assert model.parameter_count == sum(t.size for t in model.tensors.values())
    assert (
        model.checkpoint.mapped_bytes == (tmp_path / "consolidated.00.pth").stat().st_size
    )
    assert model.notes == ("RoPE scaling factor 8 by the sizes",)
    assert f"{tmp_path} (Meta, a PyTorch file); " in model.description
    assert "RoPE scaling factor 8" in model.description


def test_without_a_tokenizer_file_there_is_none_and_the_model_runs(
    tmp_path: Path,
) -> None:
    model = load_model(write_meta_directory(tmp_path, GROUPED))
    assert model.tokenizer is None
    context = InferenceContext(model.args, 16)
    assert model.transformer.forward(context, [1, 2, 3]).shape == (1, GROUPED.vocab)


@pytest.mark.parametrize("dtype", [ml.float16, ml.bfloat16], ids=lambda d: d.name)
def test_llama_2_in_metas_shards_gives_the_bits_of_one_file(
    tmp_path: Path, dtype: ml.DType
) -> None:
    # int(2 * 4 * 32 / 3) = 85, rounded up to 96; embeddings by columns; no rope_theta.
    config = replace(CONFIGS[0], ffn=96, vocab=132)
    params: dict[str, object] = {
        "dim": 32, "multiple_of": 48, "n_heads": 4, "n_layers": 2, "norm_eps": 1e-05,
        "vocab_size": -1,
    }  # fmt: skip
    arrays = {n: w.astype(dtype.numpy_dtype) for n, w in weights(config).items()}
    for shards in (1, 2):
        directory = tmp_path / str(shards)
        directory.mkdir()
        (directory / "params.json").write_text(json.dumps(params))
        parts = {
            name: split_tensor(name, array, shards, 1) for name, array in arrays.items()
        }
        for number in range(shards):
            part = {name: pieces[number] for name, pieces in parts.items()}
            write_pth(directory / f"consolidated.{number:02d}.pth", part)
    one = load_model(tmp_path / "1")
    two = load_model(tmp_path / "2")
    assert one.args == two.args
    assert (one.args.vocab_size, one.args.rope_theta) == (132, 10000.0)
    assert (one.args.n_kv_heads, one.args.max_context_length) == (4, 4096)
    assert one.args.dtype is (ml.float32 if dtype is ml.float16 else ml.bfloat16)
    assert two.checkpoint.source_format == "Meta, 2 PyTorch files merged"
    ids = token_ids(config, 30)
    expected = run(transformer(config, dtype), ids)
    for model in (one, two):
        check_bits(run(model.transformer, ids), expected)


@pytest.mark.parametrize(
    "changes",
    [
        {"n_heads": 0},
        {"n_heads": -8},
        {"n_heads": 7},
        {"n_heads": 8.0},
        {"n_heads": True},
        {"n_kv_heads": 3},
        {"n_kv_heads": 0},
        {"n_kv_heads": 4},
        {"n_layers": 10**9},
        {"n_layers": 3},
        {"n_layers": 1},
        {"dim": 128},
        {"dim": 0},
        {"rope_theta": 0},
        {"rope_theta": float("nan")},
        {"rope_theta": "500000"},
        {"rope_theta": -1},
        {"norm_eps": 0},
        {"norm_eps": float("inf")},
        {"norm_eps": None},
        {"vocab_size": 100},
        {"vocab_size": 0},
        {"multiple_of": 7},
        {"ffn_dim_multiplier": 0, "multiple_of": 90},
        {"use_scaled_rope": 1},
        {"max_seq_len": 0},
        {"lora_args": {"rank": 16}},
        {"n_heads": 64, "n_kv_heads": 16},
        {"dim": 10**400},
    ],
    ids=str,
)
def test_parameters_that_contradict_are_refused_and_the_valid_twin_loads(
    tmp_path: Path, changes: dict[str, object]
) -> None:
    write_meta_directory(tmp_path, GROUPED)
    assert load_model(tmp_path).args.dim == 64
    params = {k: v for k, v in (GROUPED.params() | changes).items() if v is not None}
    (tmp_path / "params.json").write_text(json.dumps(params))
    with pytest.raises(LlamaBoltsError) as caught:
        load_model(tmp_path)
    text = str(caught.value)
    assert text.startswith(str(tmp_path))
    assert text.isprintable()
    assert len(text) < 700


@pytest.mark.parametrize("lack", [False, True], ids=["refused", "no memory"])
def test_a_failed_load_leaves_no_file_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lack: bool
) -> None:
    """Also where Python does not get memory, which is an error of the package."""
    kind: type[Exception] = TokenizerError
    text = "tokenizer.model: .*rank"
    directory = write_meta_directory(tmp_path, BYTES_VOCAB)
    (directory / "tokenizer.model").write_text("AA== 7\n")
    if lack:
        kind = NotEnoughMemoryError
        text = r"\[load_model\] memory: the system"
        monkeypatch.setattr(Source, "find_tokenizer", Mock(side_effect=MemoryError))
    with pytest.raises(kind, match=text):
        load_model(tmp_path)
    gc.collect()
    if (descriptors := Path("/proc/self/fd")).is_dir():
        targets = [os.path.realpath(entry) for entry in descriptors.iterdir()]
        assert not [target for target in targets if target.startswith(str(tmp_path))]
        assert str(tmp_path) not in Path("/proc/self/maps").read_text()
    monkeypatch.undo()
    write_byte_tokenizer(directory / "tokenizer.model")
    load_model(directory)  # the valid twin


REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAM = """
import json, sys
from pathlib import Path
from src.model import InferenceContext, load_model

def anonymous():
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024

before = anonymous()
model = load_model(sys.argv[1])
loaded = anonymous()
context = InferenceContext(model.args, 64)
for start in range(3):
    model.transformer.forward(context, [start], start)
mapped = model.checkpoint.mapped_bytes
print(json.dumps([loaded - before, anonymous() - loaded - context.nbytes, mapped]))
"""


def write_large_directory(directory: Path, config: dict[str, Any], dtype: Any) -> Path:
    arrays = zero_arrays(config, dtype)
    return write_hugging_face_directory(directory, config, arrays, shards=2)


def write_large_gguf(directory: Path, config: Tiny) -> Path:
    """Write zeros in Q4_K and Q6_K that cost no disk, and as many tokens as there are
    rows.
    """
    pairs = list(product(byte_letters(), repeat=2))
    merges = [*pairs, *((first + second, "e") for first, second in pairs)]
    keys = llama_keys(config) | byte_level_keys(
        byte_level_file(merges[: config.vocab - 259])
    )
    entries = []
    size = 0
    for name, shape in shapes(config):
        number = F32 if len(shape) == 1 else 14 if name.endswith(FINER) else 12
        entries.append(entry(gguf_name(name), shape[::-1], number, size))
        size += nbytes_of(DTYPES[number], shape)
    head = header(len(entries), len(keys)) + b"".join(
        [*starmap(key, keys.items()), *entries]
    )
    (path := directory / "model.gguf").write_bytes(head + bytes(-len(head) % 32))
    os.truncate(path, path.stat().st_size + size)
    return path


SIX_LAYERS = {"num_hidden_layers": 6}
LLAMA_3_8B = Tiny("8b", 4096, 32, 32, 8, 14336, 128256, theta=500000.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("write", "most"),
    [
        (
            lambda where: write_large_directory(where, LLAMA_3_2_1B, ml_dtypes.bfloat16),
            32 << 20,
        ),
        (
            lambda where: write_large_directory(
                where, LLAMA_2_7B | SIX_LAYERS, np.float16
            ),
            32 << 20,
        ),
        (lambda where: write_large_gguf(where, LLAMA_3_8B), 96 << 20),
    ],
    ids=[
        "Llama 3.2 1B",
        "Llama 2 7B, six layers of it",
        "Llama 3 8B, GGUF with its tokenizer",
    ],
)
def test_loading_and_running_a_large_model_copies_no_weight(
    tmp_path: Path, write: Callable[[Path], Path], most: int
) -> None:
    if not Path("/proc/self/status").exists():
        pytest.skip("the system does not tell the anonymous memory of a process")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(write(tmp_path))],
        cwd=REPOSITORY, env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    loading, running, mapped = json.loads(done.stdout)
    assert mapped > 2 << 30
    assert loading < most
    assert running < 118 << 20
