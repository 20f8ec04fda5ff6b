"""What each parser does with one input, and what must hold of an input that it accepts."""

from collections.abc import Mapping
from pathlib import Path

from src import ml
from src.checkpoint import CheckpointError, read_pth, read_safetensors
from src.checkpoint.gguf import read_gguf
from src.checkpoint.gguf_config import read_gguf_config
from src.checkpoint.hugging_face_config import read_hugging_face_config
from src.checkpoint.mapped_file import MappedFile
from src.checkpoint.packed_weights import NF4_STATE, read_quantization, take_packed
from src.checkpoint.pickle_machine import PickleMachine
from src.checkpoint.safetensors import SafetensorsFile, read_index
from src.checkpoint.zip_directory import read_directory
from src.inference.chat_encoding import format_of_template, read_template
from src.model.args import args_from_gguf
from src.tokenizer.config_files import read_added_tokens_of_config, read_token_settings
from src.tokenizer.gguf_keys import gguf_tokenizer
from src.tokenizer.sentencepiece_model import (
    is_sentencepiece_file,
    read_sentencepiece_model,
    sentencepiece_tokenizer,
)
from src.tokenizer.tiktoken_file import llama3_tokenizer, read_tiktoken_file
from src.tokenizer.tokenizer import Tokenizer
from src.tokenizer.tokenizer_json import read_tokenizer_json
from src.untrusted import escape_controls, escape_line, read_json_object

DANGEROUS = {*map(chr, range(0x20)), *map(chr, range(0x7F, 0xA0)), "\u202e", "\u2066", "\u2028"}
PROBE = "the 1 \u2581\u00e9\U0001f642\n<s>"


def read_pickle(data: bytes, path: Path) -> None:
    PickleMachine(data, "data.pkl").run()


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


def read_checkpoint(data: bytes, path: Path) -> None:
    use(read_pth(path), len(data))


def read_tensors(data: bytes, path: Path) -> None:
    use(read_safetensors(path), len(data))


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


def read_files_of_index(data: bytes, path: Path) -> None:
    for file in read_index(path):
        assert file.parent.samefile(path.parent)


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
        args_from_gguf(read_gguf_config(file), file.tensors)
    finally:
        mapped.close()


def read_vocabulary(data: bytes, path: Path) -> None:
    tokenizer = gguf_tokenizer(path, read_gguf(path).decoded("tokenizer."))
    if tokenizer is not None:
        try_out(tokenizer)


def read_config(data: bytes, path: Path) -> None:
    read_hugging_face_config(path.parent)


def read_quantization_config(data: bytes, path: Path) -> None:
    value = read_json_object(path, 1 << 16, CheckpointError)
    read_quantization("config.json", {"quantization_config": value})


def read_ranks(data: bytes, path: Path) -> None:
    ranks = read_tiktoken_file(path)
    if len(ranks) <= 512:
        tokenizer = llama3_tokenizer(ranks)
        assert tokenizer.decode(tokenizer.encode(PROBE, bos=False, eos=False)) == PROBE


def try_out(tokenizer: Tokenizer) -> None:
    tokenizer.decode(tokenizer.encode(PROBE, bos=False, eos=False))


def read_pieces(data: bytes, path: Path) -> None:
    is_sentencepiece_file(path)
    model = read_sentencepiece_model(path)
    try_out(sentencepiece_tokenizer(model, read_token_settings(path.parent)))


def read_beside(data: bytes, path: Path) -> None:
    model = read_sentencepiece_model(path.parent / "tokenizer.model")
    added = read_added_tokens_of_config(path.parent, model.ids, model.special)
    try_out(sentencepiece_tokenizer(model, read_token_settings(path.parent), added))
    read_format(data, path)


def read_json_tokenizer(data: bytes, path: Path) -> None:
    try_out(read_tokenizer_json(path))


def read_format(data: bytes, path: Path) -> None:
    template = read_template(path.parent)
    if template is not None:
        format_of_template(template)


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
