"""Random checkpoints of real shapes, in Meta's layout and as GGUF,
from the same numbers.
"""

import argparse
import base64
import ctypes
import itertools
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from src.checkpoint.gguf import read_gguf
from src.checkpoint.gguf_writer import GgufWriter
from src.model.saving import save_quantized
from src.model.saving_gguf import save_gguf
from src.model.sources import find_source
from tests.support.hugging_face_writer import write_hugging_face_directory
from tests.support.pth_writer import random_tensor, write_random_meta_directory

SPECIAL_TOKENS = 256
# The configuration and the weights, without a tokenizer.
MODEL_FILES = ("params.json", "consolidated.00.pth", "config.json", "model.safetensors")
_LLAMA_3 = {
    "n_heads": 32, "n_kv_heads": 8, "vocab_size": 128256, "norm_eps": 1e-5,
    "rope_theta": 500000.0, "use_scaled_rope": True, "max_seq_len": 131072,
}  # fmt: skip


# By name: what `params.json` says. The output of all but 8b is the embedding table.
SHAPES: dict[str, dict[str, Any]] = {
    "1b": _LLAMA_3
    | {"dim": 2048, "n_layers": 16, "multiple_of": 256, "ffn_dim_multiplier": 1.5},
    "8b": _LLAMA_3
    | {"dim": 4096, "n_layers": 32, "multiple_of": 1024, "ffn_dim_multiplier": 1.3},
    "tiny": _LLAMA_3
    | {
        "dim": 64,
        "n_layers": 5,
        "n_heads": 4,
        "n_kv_heads": 2,
        "vocab_size": 512,
        "multiple_of": 32,
        "max_seq_len": 16384,
    },
}


# By name: what `config.json` says of models with windows in some layers.
WINDOW_SHAPES: dict[str, dict[str, Any]] = {
    "gemma-1b": {
        "model_type": "gemma3_text",
        "hidden_size": 1152,
        "num_hidden_layers": 26,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "intermediate_size": 6912,
        "vocab_size": 262144,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 32768,
        "rope_theta": 1000000.0,
        "rope_local_base_freq": 10000.0,
        "query_pre_attn_scalar": 256,
        "sliding_window": 512,
        "sliding_window_pattern": 6,
        "hidden_activation": "gelu_pytorch_tanh",
        "tie_word_embeddings": True,
        "eos_token_id": 1,
    },
}
WINDOW_SHAPES["gemma-tiny"] = WINDOW_SHAPES["gemma-1b"] | {
    "hidden_size": 64,
    "num_hidden_layers": 7,
    "head_dim": 32,
    "query_pre_attn_scalar": 32,
    "intermediate_size": 96,
    "vocab_size": 512,
}


# By name: what `config.json` says of models with experts, cut to a few layers.
EXPERT_SHAPES: dict[str, dict[str, Any]] = {
    "qwen3-30b": {
        "model_type": "qwen3_moe",
        "hidden_size": 2048,
        "num_hidden_layers": 6,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
        "vocab_size": 151936,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 40960,
        "rope_theta": 1000000.0,
        "eos_token_id": 1,
    },
}
EXPERT_SHAPES["qwen3-tiny"] = EXPERT_SHAPES["qwen3-30b"] | {
    "hidden_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "moe_intermediate_size": 256,
    "num_experts": 16,
    "num_experts_per_tok": 2,
    "vocab_size": 512,
}


HELP = {
    "shape": "1b, 8b, tiny, or a model directory", "layers": "instead of the shape's own",
    "directory": "where random models are kept between runs",
    "pairs": "rounds of each measure", "repeats": "when the roofline has drifted",
    "kind": "bfloat16, or a kind of llama.cpp's such as Q4_K_M",
    "steps": "tokens of one decode timing", "tokens": "of each answer and round",
    "isa": "instruction set of llama-bolts, instead of the fastest",
    "isas": "default: all that have vectors", "theirs": "llama.cpp's",
    "pytorch": "time PyTorch's linear too", "alone": "without llama.cpp",
    "beside": "another file of the model, whose start to ready is timed too",
    "activations": "of our products with quantized weights",
    "ik": "a directory of the sources of ik_llama.cpp, which is built there",
    "shares": "write what the plot of the page shows",
}  # fmt: skip
# Of a checkpoint, for `read_options`.
CHECKPOINT = {
    "shape": "1b",
    "layers": int,
    "directory": Path(tempfile.gettempdir(), "llama-bolts-bench"),
}


def read_options(
    about: str | None, choices: Mapping[str, Iterable[str]] | None = None, **defaults: Any
) -> argparse.Namespace:
    """Read the command line of a benchmark whose docstring is `about`.

    `choices` are what an option may be. The type of an option is that of its default: a
    list takes several values, False is a switch, and a type is that of an option without
    a default.
    """
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in defaults.items():
        named: dict[str, Any]
        if default is False:
            named = {"action": "store_true"}
        elif isinstance(default, list):
            named = {"default": default, "type": type(default[0]), "nargs": "*"}
        elif isinstance(default, type):
            named = {"type": default}
        else:
            named = {"default": default, "type": type(default)}
        if choices and name in choices:
            named["choices"] = list(choices[name])
        parser.add_argument(f"--{name}", help=HELP.get(name), **named)
    options = parser.parse_args()
    if "directory" in options:
        options.directory.mkdir(parents=True, exist_ok=True)
    return options


def find_checkpoint(shape: str, layers: int | None, directory: Path) -> Path:
    """Give the model directory of a shape below `directory`; write it if it is not there.

    `shape` is a name of `SHAPES`, or the path of a model directory.
    """
    if shape not in SHAPES:
        if layers is not None:
            raise SystemExit(
                f"--layers goes with one of {', '.join(SHAPES)}, not with {shape}"
            )
        return Path(shape)
    params = SHAPES[shape] if layers is None else SHAPES[shape] | {"n_layers": layers}

    def write(place: Path) -> None:
        write_random_meta_directory(place, params, tied=shape != "8b")
        write_ranks(place / "tokenizer.model", params["vocab_size"] - SPECIAL_TOKENS)

    return _made(directory / f"{shape}-{params['n_layers']}-layers", write)


def find_window_checkpoint(shape: str, directory: Path) -> Path:
    """Give the model directory of one of `WINDOW_SHAPES`; write it if it is not there."""
    return _find_random(directory / shape, WINDOW_SHAPES[shape])


def _find_random(target: Path, config: Mapping[str, Any]) -> Path:
    """Give a directory with random weights of a configuration of Hugging Face."""

    def write(place: Path) -> None:
        write_hugging_face_directory(place, config, {})
        args = find_source(place).args
        arrays = {
            row.hugging_face: random_tensor(
                row.name, args.tensor_shapes[row.name], np.dtype(ml_dtypes.bfloat16), 0
            )
            for row in args.tensor_rows
            if row.name != "output.weight" or not config.get("tie_word_embeddings")
        }
        write_hugging_face_directory(place, config, arrays)

    return _made(target, write)


def _made(target: Path, write: Callable[[Path], object]) -> Path:
    """Give a file or a folder; write it, as a whole or not at all, if it is not there."""
    if not target.exists():
        print(f"writing {target}", flush=True)
        unfinished = target.with_name(f"{target.stem}.unfinished{target.suffix}")
        if unfinished.is_dir():
            shutil.rmtree(unfinished)
        write(unfinished)
        unfinished.rename(target)
    return target


def write_ranks(path: Path, count: int) -> None:
    """Write a tokenizer of as many ranks as Llama's: all single bytes, pairs, and
    triples.
    """
    lengths = (
        itertools.product(range(256), repeat=length) for length in itertools.count(1)
    )
    tokens = itertools.islice(itertools.chain.from_iterable(lengths), count)
    lines = (
        f"{base64.b64encode(bytes(token)).decode()} {rank}\n"
        for rank, token in enumerate(tokens)
    )
    path.write_text("".join(lines))


def find_gguf(directory: Path) -> Path:
    """Give the GGUF file of a model, without its vocabulary;
    write it if it is not there.
    """
    with tempfile.TemporaryDirectory() as bare:
        for name in MODEL_FILES:
            if (directory / name).exists():
                Path(bare, name).symlink_to(directory.resolve() / name)
        return _made(directory / "model.gguf", partial(save_gguf, bare))


def find_quantized(directory: Path, quantize: str) -> Path:
    """Give the directory of a quantized model beside that of the plain one; save it if
    needed.
    """
    target = directory.with_name(f"{directory.name}-{quantize}")
    return _made(target, lambda place: save_quantized(directory, place, quantize))


def find_quantized_gguf(directory: Path, kind: str) -> Path:
    """Give the GGUF file that llama.cpp makes of a model, as Q4_0 or Q4_K_M, by its
    defaults.
    """
    target = directory / f"model-{kind}.gguf"
    return _made(target, lambda place: quantize_gguf(find_gguf(directory), place, kind))


def find_experts_gguf(shape: str, directory: Path, kind: str) -> Path:
    """Give the GGUF file of one of `EXPERT_SHAPES`; write it if it is not there.

    llama.cpp makes a file with one layer, whose tensors every layer then has.
    """
    config = EXPERT_SHAPES[shape]
    layers = config["num_hidden_layers"]

    def write(place: Path) -> None:
        name = f"{shape}-1-layer"
        plain = _find_random(directory / name, config | {"num_hidden_layers": 1})
        file = read_gguf(find_quantized_gguf(plain, kind))
        sources = {
            tensor.name.replace("blk.0.", f"blk.{layer}."): tensor
            for layer in range(layers)
            for tensor in file.tensors.values()
            if layer == 0 or tensor.name.startswith("blk.0.")
        }
        keys = dict(file.keys) | {
            f"{file.keys['general.architecture']}.block_count": layers
        }
        tensors = {name: (each.dtype, each.shape) for name, each in sources.items()}
        content = np.memmap(file.path, np.uint8, "r")
        with GgufWriter(place, keys, tensors) as writer:
            for name, each in sources.items():
                writer.write(name, memoryview(content[each.start : each.stop]))

    return _made(directory / f"{shape}-{kind}.gguf", write)


def quantize_gguf(source: Path, target: Path, kind: str) -> None:
    """Have llama.cpp make a GGUF file of another one."""
    import llama_cpp

    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{kind}")
    quiet = llama_cpp.llama_log_callback(lambda *_: None)
    llama_cpp.llama_log_set(quiet, ctypes.c_void_p(0))
    if (
        llama_cpp.llama_model_quantize(str(source).encode(), str(target).encode(), params)
        != 0
    ):
        raise SystemExit(f"llama.cpp could not make {kind} of {source}")
