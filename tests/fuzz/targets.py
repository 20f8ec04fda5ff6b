"""The parsers of files, each with small valid inputs and the only errors that it may raise."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from src import ml
from src.checkpoint import CheckpointError, read_pth, read_safetensors
from src.checkpoint.hugging_face_config import read_hugging_face_config
from src.checkpoint.mapped_file import MappedFile
from src.checkpoint.params import read_params
from src.checkpoint.pickle_machine import PickleMachine
from src.checkpoint.safetensors_index import read_index
from src.checkpoint.torch_globals import TORCH_GLOBALS, load_storage
from src.checkpoint.zip_directory import read_directory
from src.cli.errors import UsageError
from src.cli.escape import escape_controls, escape_line
from src.cli.saved_chat import SavedChat, chat_as_json, read_chat
from src.cli.session import Turn
from src.cli.settings import Settings
from src.inference import SamplingArgs
from src.outside import parse_strict_json
from src.tokenizer import TokenizerError
from src.tokenizer.loader import load_tokenizer
from src.tokenizer.tiktoken_file import llama3_tokenizer, read_tiktoken_file
from src.tokenizer.tokenizer_json import read_tokenizer_json
from tests.support.hugging_face_writer import CONFIG
from tests.support.pth_writer import (
    dict_program,
    storage_id,
    tensor_call,
    write_archive,
    write_pth,
)
from tests.support.safetensors_writer import write_safetensors
from tests.support.sentencepiece_writer import NORMAL, RESERVED, model_message
from tests.tokenizer.conftest import SINGLE_BYTES, tiktoken_lines
from tests.tokenizer.json_files import byte_level_file, marked_file

LONGEST_TEXT = 1000  # of an error, beside the path
DANGEROUS = {*map(chr, range(0x20)), *map(chr, range(0x7F, 0xA0)), "\u202e", "\u2066", "\u2028"}
SHARDS = ("a.safetensors", "b.safetensors")
PROBE = "the 1 \u2581\u00e9\U0001f642\n<s>"


class Never(Exception):  # noqa: N818 - no error: it stands for "raises nothing"
    """What a function refuses with that refuses nothing."""


@dataclass(frozen=True)
class Target:
    """One parser.

    Attributes:
        name: the file it reads is called so in the folder.
        read: reads an input; gets the bytes, and a folder that holds them under `name`.
        refusals: what it may raise, and nothing else.
        make: makes small valid inputs, given an empty folder.
        on_disk: whether `read` wants the file; else it gets the bytes alone.
        beside: files that lie beside it.
    """

    name: str
    read: Callable[[bytes, Path], object]
    refusals: type[Exception]
    make: Callable[[Path], list[bytes]]
    on_disk: bool = True
    beside: Mapping[str, bytes] | None = None


def run(target: Target, data: bytes, folder: Path) -> bool:
    """Read one input; tell whether it was accepted.

    Raises:
        AssertionError: the refusal is not one printable line of bounded length.
        Exception: whatever the parser raises that it may not.
    """
    path = folder / target.name
    if target.on_disk:
        path.write_bytes(data)
    try:
        target.read(data, path)
    except target.refusals as refusal:
        check_text(str(refusal), path)
        return False
    return True


def check_text(text: str, path: Path) -> None:
    """Check that a refusal is one printable line of bounded length."""
    assert text
    assert text.isprintable(), ascii(text)
    assert len(text) < LONGEST_TEXT + len(str(path)), f"{len(text)} characters: {text[:500]}"


def prepare(target: Target, folder: Path) -> None:
    """Write what lies beside the file of a target."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (target.beside or {}).items():
        (folder / name).write_bytes(content)


def seeds(target: Target, folder: Path) -> tuple[bytes, ...]:
    """Give the valid inputs of a target."""
    return tuple(target.make(folder))


# What each parser does with one input


def read_pickle(data: bytes, path: Path) -> object:
    return PickleMachine(data, "data.pkl", TORCH_GLOBALS, load_storage).run()


def read_zip(data: bytes, path: Path) -> object:
    file = MappedFile(path)
    try:
        for record in read_directory(file).values():
            assert 0 <= record.start <= record.start + record.size <= len(data)
    finally:
        file.close()
    return None


def use(tensors: Mapping[str, ml.Tensor], most: int) -> None:
    """Touch every element of tensors, which lie in a file of `most` bytes."""
    for tensor in tensors.values():
        assert tensor.size * tensor.dtype.itemsize <= most
        tensor.numpy().copy()


def read_checkpoint(data: bytes, path: Path) -> None:
    use(read_pth(path), len(data))


def read_tensors(data: bytes, path: Path) -> None:
    use(read_safetensors(path), len(data))


def read_files_of_index(data: bytes, path: Path) -> None:
    for file in read_index(path):
        assert file.parent.samefile(path.parent)


def read_ranks(data: bytes, path: Path) -> None:
    ranks = read_tiktoken_file(path)
    if len(ranks) <= 512:
        tokenizer = llama3_tokenizer(ranks)
        assert tokenizer.decode(tokenizer.encode(PROBE, bos=False, eos=False)) == PROBE


def read_pieces(data: bytes, path: Path) -> None:
    tokenizer = load_tokenizer(path.parent)
    tokenizer.decode(tokenizer.encode(PROBE, bos=False, eos=False))


def read_json_tokenizer(data: bytes, path: Path) -> None:
    tokenizer = read_tokenizer_json(path)
    tokenizer.decode(tokenizer.encode(PROBE, bos=False, eos=False))


def filter_text(data: bytes, path: Path) -> None:
    text = data.decode("utf-8", "surrogateescape")
    middle = len(text) // 2
    shown = escape_controls(text)
    assert not (set(shown) - {"\n", "\t"}) & DANGEROUS
    assert shown == escape_controls(text[:middle]) + escape_controls(text[middle:])
    shown.encode()
    line = escape_line(text, 40)
    assert len(line) <= 40
    assert not set(line) & DANGEROUS


# Small valid inputs


def small_tensors() -> dict[str, np.ndarray]:
    return {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b.weight": np.arange(3, dtype=np.float16),
    }


def program() -> bytes:
    whole = storage_id("FloatStorage", "0", 6)
    calls = {
        "a": tensor_call(whole, 0, [2, 3], [1, 2]),
        "b": tensor_call(whole, 5, [], []),
    }
    return dict_program(calls)


def make_archives(folder: Path) -> list[bytes]:
    path = folder / "made"
    write_archive(path, program(), {"0": bytes(24)}, prefix="m")
    shared = path.read_bytes()
    write_pth(path, small_tensors())
    return [shared, path.read_bytes()]


def make_safetensors(folder: Path) -> list[bytes]:
    path = folder / "made"
    write_safetensors(path, small_tensors(), {"format": "pt"})
    return [path.read_bytes()]


def as_json(*values: object) -> Callable[[Path], list[bytes]]:
    return lambda folder: [json.dumps(value).encode() for value in values]


def make_ranks(folder: Path) -> list[bytes]:
    return [b"".join(line + b"\n" for line in tiktoken_lines((*SINGLE_BYTES, b"he", b"the")))]


def make_pieces(folder: Path) -> list[bytes]:
    words = [("\u2581", -1.0, NORMAL), ("t", -2.0, NORMAL), ("h", -3.0, NORMAL)]
    words += [("th", -4.0, NORMAL), ("\u2581th", -5.0, NORMAL)]
    return [model_message([*RESERVED, *words])]


def make_tokenizers(folder: Path) -> list[bytes]:
    return [json.dumps(file, ensure_ascii=False).encode() for file in (SMALL, marked_file())]


def make_chats(folder: Path) -> list[bytes]:
    sampling = SamplingArgs(0.5, 7, 0.8, 0.1, 1.2, 3)
    turns = (Turn("H\u00e9llo \U0001f642", "\x1b[31mred\n"),)
    chat = SavedChat("m", False, Settings(sampling, 20, ("end",)), "Be short.", turns)
    return [chat_as_json(chat)]


SMALL = byte_level_file()
PARAMS = {
    "dim": 64,
    "n_layers": 2,
    "n_heads": 4,
    "n_kv_heads": 2,
    "vocab_size": 512,
    "multiple_of": 32,
    "ffn_dim_multiplier": 1.3,
    "norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "use_scaled_rope": True,
}
LLAMA_3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
OLDER = {k: v for k, v in CONFIG.items() if k not in ("rope_parameters", "dtype")}
OLDER |= {"rope_theta": 5e5, "rope_scaling": LLAMA_3_ROPE, "torch_dtype": "bfloat16"}
MISTRAL = CONFIG | {"model_type": "mistral", "sliding_window": None}
MISTRAL |= {"architectures": ["MistralForCausalLM"]}
for key in ("attention_bias", "mlp_bias", "pretraining_tp"):
    MISTRAL.pop(key)
GENERATION = {"bos_token_id": 1, "eos_token_id": [2, 3], "temperature": 0.6, "top_p": 0.9}
TOKENIZER_CONFIG = {
    "add_bos_token": True,
    "bos_token": "<s>",
    "eos_token": {"content": "</s>", "special": True},
    "additional_special_tokens": ["<|im_end|>"],
    "added_tokens_decoder": {"264": {"content": "<|im_end|>", "special": True}},
    "legacy": True,
}
INDEX = {"metadata": {"total_size": 0}, "weight_map": {"a": SHARDS[0], "b": SHARDS[1]}}
TEXTS = ["", "a\x1b[2J\x9b\u202eb", "\x1b]0;t\x07\r\n\t\u2028 \U0001f642"]

_ALL = (
    Target("data.pkl", read_pickle, CheckpointError, lambda _: [program()], on_disk=False),
    Target("archive.zip", read_zip, CheckpointError, make_archives),
    Target("model.pth", read_checkpoint, CheckpointError, make_archives),
    Target("model.safetensors", read_tensors, CheckpointError, make_safetensors),
    Target(
        "model.safetensors.index.json",
        read_files_of_index,
        CheckpointError,
        as_json(INDEX),
        beside=dict.fromkeys(SHARDS, b""),
    ),
    Target(
        "config.json",
        lambda _, path: read_hugging_face_config(path.parent),
        CheckpointError,
        as_json(CONFIG, OLDER, MISTRAL),
    ),
    Target(
        "generation_config.json",
        lambda _, path: read_hugging_face_config(path.parent),
        CheckpointError,
        as_json(GENERATION),
        beside={"config.json": json.dumps(CONFIG).encode()},
    ),
    Target("params.json", lambda _, path: read_params(path), CheckpointError, as_json(PARAMS)),
    Target("tokenizer.ranks", read_ranks, TokenizerError, make_ranks),
    Target("tokenizer.model", read_pieces, TokenizerError, make_pieces),
    Target(
        "tokenizer_config.json",
        read_pieces,
        TokenizerError,
        as_json(TOKENIZER_CONFIG),
        beside={"tokenizer.model": make_pieces(Path())[0]},
    ),
    Target("tokenizer.json", read_json_tokenizer, TokenizerError, make_tokenizers),
    Target("chat.json", lambda _, path: read_chat(path), UsageError, make_chats),
    Target(
        "strict-json",
        lambda data, _: parse_strict_json(data),
        ValueError,
        as_json([1, -2.5e3, None, {"a": "\u00e9\n", "b": [True, False]}], "x"),
        on_disk=False,
    ),
    Target(
        "escape",
        filter_text,
        Never,
        lambda _: [text.encode() for text in TEXTS],
        on_disk=False,
    ),
)
TARGETS = {target.name: target for target in _ALL}
