"""The parsers of files, each with small inputs and what must hold of those that it
accepts.
"""

import json
import math
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from src import ml
from src.checkpoint import CheckpointError, read_pth, read_safetensors
from src.checkpoint.adapters import AdapterBase, read_adapter
from src.checkpoint.gguf import read_gguf
from src.checkpoint.gguf_config import read_gguf_config
from src.checkpoint.hugging_face_config import read_hugging_face_config
from src.checkpoint.mapped_file import MappedFile
from src.checkpoint.packed_weights import NF4_STATE, read_quantization, take_packed
from src.checkpoint.params import read_params
from src.checkpoint.pickle_machine import PickleMachine
from src.checkpoint.safetensors import SafetensorsFile, read_index
from src.checkpoint.zip_directory import read_directory
from src.cli.console import UsageError
from src.cli.saved_chat import read_chat
from src.inference import ChatTemplate, Message
from src.inference.marked_text import marks_of
from src.ml.errors import LlamaBoltsError
from src.model.families import ARCHITECTURES, FAMILIES
from src.model.sources.gguf import args_from_gguf
from src.model.sources.hugging_face import args_from_config
from src.tokenizer import TokenizerError
from src.tokenizer.config_files import (
    is_sentencepiece_file,
    read_added_tokens_of_config,
    read_token_settings,
)
from src.tokenizer.gguf_keys import ARRAYS, gguf_tokenizer
from src.tokenizer.sentencepiece_model import (
    read_sentencepiece_model,
    sentencepiece_tokenizer,
)
from src.tokenizer.template_files import read_chat_templates
from src.tokenizer.tiktoken_file import llama3_tokenizer, read_tiktoken_file
from src.tokenizer.tokenizer import Tokenizer
from src.tokenizer.tokenizer_json import read_tokenizer_json
from src.untrusted import (
    escape_controls,
    escape_line,
    parse_strict_json,
    read_json_object,
)
from tests.hardening.fuzz import inputs
from tests.hardening.fuzz.bed import Make, Target
from tests.hardening.fuzz.inputs import as_json, as_ranks, as_text
from tests.support.hugging_face_writer import CONFIG
from tests.tokenizer.conftest import SINGLE_BYTES
from tests.tokenizer.json_files import byte_level_file, metaspace_file

Read = Callable[[bytes, Path], None]
TARGETS: dict[str, Target] = {}
DANGEROUS = {
    *map(chr, range(0x20)),
    *map(chr, range(0x7F, 0xA0)),
    "\u202e",
    "\u2066",
    "\u2028",
}
PROBE = "the 1 \u2581\u00e9\U0001f642\n<s>"
MESSAGES = (
    Message("system", "Be kind."),
    Message("user", "Hi"),
    Message("assistant", " Hello"),
)
SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
# One of each kind of value.
VALUES = ([1, -2.5e3, None, {"a": "\u00e9\n", "b": [True, False]}], "x")


def target(
    name: str, make: Make, make_short: Make | None = None, **more: Any
) -> Callable[[Read], Read]:
    """Make a function a target: it reads the bytes of an input, or the file that holds
    them.
    """

    def add(read: Read) -> Read:
        TARGETS[name] = Target(name, read, make, make_short, **more)
        return read

    return add


@target("data.pkl", lambda _: [inputs.program()], on_disk=False)
def read_pickle(data: bytes, path: Path) -> None:
    PickleMachine(data, "data.pkl").run()


@target("archive.zip", inputs.archives, inputs.small_archives)
def read_zip(data: bytes, path: Path) -> None:
    file = MappedFile(path)
    try:
        for record in read_directory(file).values():
            assert 0 <= record.start <= record.start + record.size <= len(data)
    finally:
        file.close()


def use(tensors: Mapping[str, ml.Tensor], most: int) -> None:
    """Touch every element of tensors, which lie in a file of `most` bytes."""
    for tensor in tensors.values():
        assert tensor.size * tensor.dtype.itemsize <= most
        tensor.numpy().copy()


@target("model.pth", inputs.archives)
def read_checkpoint(data: bytes, path: Path) -> None:
    use(read_pth(path), len(data))


@target("model.safetensors", inputs.safetensors)
def read_tensors(data: bytes, path: Path) -> None:
    use(read_safetensors(path), len(data))


@target("model.gguf", inputs.gguf, refusals=LlamaBoltsError)
def read_header(data: bytes, path: Path) -> None:
    """Read a GGUF file: its keys, its sizes, its tensors, each block of them."""
    file = read_gguf(path)
    mapped = file.map()
    try:
        for name, entry in file.tensors.items():
            assert 0 <= entry.start < entry.stop <= len(data)
            weight = entry.make(mapped, name)
            if isinstance(weight, ml.QuantizedTensor):
                weight.dequantize()
            else:
                weight.numpy().copy()
        for value in file.keys.values():
            assert str(value) is not None
        config = read_gguf_config(file, ARCHITECTURES)
        args_from_gguf(config, file.tensors, ARCHITECTURES[config.architecture])
    finally:
        mapped.close()


def try_out(tokenizer: Tokenizer) -> None:
    tokenizer.decode(tokenizer.encode(PROBE, bos=False, eos=False))


@target("vocabulary.gguf", inputs.vocabularies, refusals=LlamaBoltsError)
def read_vocabulary(data: bytes, path: Path) -> None:
    keys = read_gguf(path).decoded("tokenizer.", ARRAYS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the split pattern may be a guess
        tokenizer = gguf_tokenizer(path, keys)
    if tokenizer is not None:
        try_out(tokenizer)


@target("packed.safetensors", inputs.packed)
def read_packed(data: bytes, path: Path) -> None:
    source = SafetensorsFile(path)
    try:
        found = dict(source.entries)
        kind = "nf4" if any(NF4_STATE in name for name in found) else "int8"
        for name, packed in take_packed(found, kind).items():
            weight = packed.make(name)
            assert weight.size <= 2 * len(data)
            weight.dequantize()
    finally:
        source.file.close()


@target(
    "model.safetensors.index.json",
    as_json(inputs.INDEX),
    beside=dict.fromkeys(inputs.SHARDS, b""),
)
def read_files_of_index(data: bytes, path: Path) -> None:
    for file in read_index(path):
        assert file.parent.samefile(path.parent)


@target(
    "config.json",
    as_json(CONFIG, inputs.OLDER, inputs.MISTRAL),
    refusals=LlamaBoltsError,
)
@target(
    "generation_config.json",
    as_json(inputs.GENERATION),
    beside={"config.json": json.dumps(CONFIG).encode()},
)
def read_config(data: bytes, path: Path) -> None:
    config = read_hugging_face_config(path.parent, FAMILIES)
    args_from_config(config, FAMILIES[str(config.given["model_type"])])


ADAPTER_BASE = AdapterBase(
    inputs.ADAPTER_ARGS.tensor_rows, inputs.ADAPTER_ARGS.tensor_sizes, "llama", False
)


def use_adapter(path: Path) -> None:
    """Read an adapter, and check that its matrices fit the base model."""
    adapter = read_adapter(path, ADAPTER_BASE)
    assert adapter.pairs
    for pair in adapter.pairs.values():
        assert pair.a.shape[0] == pair.b.shape[1]
        assert math.isfinite(pair.scale)
        for matrix in (pair.a, pair.b):
            assert np.isfinite(matrix.to(ml.float32).numpy()).all()


@target(
    "adapter_config.json",
    as_json(*inputs.PEFT_CONFIGS),
    beside={"adapter_model.safetensors": inputs.in_folder(inputs.peft_adapters)},
)
@target(
    "adapter_model.safetensors",
    inputs.peft_adapters,
    beside={"adapter_config.json": json.dumps(inputs.PEFT_CONFIG).encode()},
)
@target(
    "adapters.safetensors",
    inputs.mlx_adapters,
    beside={"adapter_config.json": json.dumps(inputs.MLX_CONFIG).encode()},
)
def read_adapter_directory(data: bytes, path: Path) -> None:
    use_adapter(path.parent)


@target("adapter.gguf", inputs.gguf_adapters)
def read_adapter_file(data: bytes, path: Path) -> None:
    use_adapter(path)


@target("quantization_config.json", as_json(*inputs.QUANTIZATION))
def read_quantization_config(data: bytes, path: Path) -> None:
    value = read_json_object(path, 1 << 16, CheckpointError)
    read_quantization("config.json", {"quantization_config": value})


@target("params.json", as_json(inputs.PARAMS))
def read_hyperparameters(data: bytes, path: Path) -> None:
    read_params(path)


@target(
    "tokenizer.ranks",
    as_ranks(*SINGLE_BYTES, b"he", b"the"),
    as_ranks(*inputs.FEW_TOKENS),
    refusals=TokenizerError,
)
def read_ranks(data: bytes, path: Path) -> None:
    ranks = read_tiktoken_file(path)
    if len(ranks) <= 512:
        tokenizer = llama3_tokenizer(ranks)
        assert tokenizer.decode(tokenizer.encode(PROBE, bos=False, eos=False)) == PROBE


@target("tokenizer.model", inputs.pieces, refusals=TokenizerError)
def read_pieces(data: bytes, path: Path) -> None:
    is_sentencepiece_file(path)
    model = read_sentencepiece_model(path)
    try_out(sentencepiece_tokenizer(model, read_token_settings(path.parent)))


@target(
    "tokenizer.json",
    as_json(byte_level_file(), metaspace_file()),
    inputs.small_tokenizers,
    refusals=TokenizerError,
)
def read_json_tokenizer(data: bytes, path: Path) -> None:
    try_out(read_tokenizer_json(path))


@target("chat_template.jinja", as_text(*inputs.TEMPLATES), refusals=LlamaBoltsError)
def run_template(data: bytes, path: Path) -> None:
    """Read a template and write a conversation with it, whose marks are one per
    character.
    """
    for text in read_chat_templates(path.parent).values():
        template = ChatTemplate(text)
        assert template.call_form is None or template.has_tools
        assert template.thought_form.begin
        prompt = template.render_messages(MESSAGES, special_tokens=SPECIAL_TOKENS)
        assert len(marks_of(prompt)) == len(prompt)


@target(
    "tokenizer_config.json",
    as_json(inputs.TOKENIZER_CONFIG),
    refusals=LlamaBoltsError,
    beside={"tokenizer.model": inputs.pieces(Path())[0]},
)
def read_beside(data: bytes, path: Path) -> None:
    model = read_sentencepiece_model(path.parent / "tokenizer.model")
    added = read_added_tokens_of_config(path.parent, model.ids, model.special)
    try_out(sentencepiece_tokenizer(model, read_token_settings(path.parent), added))
    run_template(data, path)


@target("chat.json", inputs.chats, refusals=UsageError)
def read_saved_chat(data: bytes, path: Path) -> None:
    read_chat(path)


@target("strict-json", as_json(*VALUES), refusals=ValueError, on_disk=False)
def read_json(data: bytes, path: Path) -> None:
    parse_strict_json(data)


@target("escape", as_text(*inputs.TEXTS), refusals=(), on_disk=False)
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
