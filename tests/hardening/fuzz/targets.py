"""The parsers of files, each with small inputs and the only errors that it may raise."""

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from src.checkpoint import CheckpointError
from src.checkpoint.params import read_params
from src.cli.console import UsageError
from src.cli.saved_chat import read_chat
from src.ml.errors import LlamaBoltsError
from src.tokenizer import TokenizerError
from src.untrusted import parse_strict_json
from tests.hardening.fuzz import inputs, readers
from tests.hardening.fuzz.inputs import Make, as_json, as_ranks, as_text
from tests.tokenizer.conftest import SINGLE_BYTES
from tests.tokenizer.json_files import byte_level_file, metaspace_file

LONGEST_TEXT = 1000  # of an error, beside the path
SHORT_PER_VALID = 30
SECONDS_PER_INPUT = 1.0  # of processor time


class Never(Exception):  # noqa: N818 - no error: it stands for "raises nothing"
    """What a function refuses with that refuses nothing."""


@dataclass(frozen=True)
class Target:
    """One parser."""

    name: str  # the file it reads is called so in the folder
    read: Callable[[bytes, Path], object]  # gets the bytes of an input, and a file that holds them
    make: Make  # makes small valid inputs, given a folder to write in
    # Where the valid inputs are long, most of the changed ones start from these, valid or not.
    make_short: Make | None = None
    refusals: type[Exception] = CheckpointError  # what it may raise, and nothing else
    on_disk: bool = True  # whether `read` wants the file; else it gets the bytes alone
    beside: Mapping[str, bytes] | None = None  # files that lie beside it


class Bed:
    """An empty folder in which one target reads inputs, each a file for a moment."""

    def __init__(self, target: Target, folder: Path) -> None:
        self.target = target
        self.valid = tuple(target.make(folder))
        short = tuple(target.make_short(folder)) if target.make_short else ()
        # Inputs to make changes to; of a target with short ones most are short.
        self.starts = (*self.valid, *short * (SHORT_PER_VALID * len(self.valid)))
        self.count, self.data = 0, b""  # how many inputs were read, and the last of them
        for name, content in (target.beside or {}).items():
            (folder / name).write_bytes(content)
        self.path = folder / target.name
        self.writes = target.on_disk  # whether inputs are written there
        self._file = os.open(self.path, os.O_CREAT | os.O_RDWR)

    def close(self) -> None:
        """Close the file of the inputs."""
        os.close(self._file)

    def read(self, data: bytes) -> bool:
        """Read one input; tell whether it was accepted.

        Raise AssertionError where the refusal is not one printable line of bounded length,
        TimeoutError after more than a second of processor time, and what the parser may not raise.
        """
        self.count += 1
        self.data = data
        if self.writes:
            os.pwrite(self._file, data, 0)
            os.ftruncate(self._file, len(data))
        started = time.process_time()
        try:
            self.target.read(data, self.path)
        except self.target.refusals as refusal:
            check_text(str(refusal), len(str(self.path)))
            return False
        finally:
            if time.process_time() - started > SECONDS_PER_INPUT:
                raise TimeoutError(f"{len(data)} bytes took over {SECONDS_PER_INPUT} seconds")
        return True


@contextlib.contextmanager
def hangs_are_noticed(bed: Bed, seconds: float = SECONDS_PER_INPUT) -> Iterator[None]:
    """Raise TimeoutError in an input of the bed that takes more processor time.

    One timer for all of them, which looks whether the bed is still at the input it was at before:
    to set it for every input would take longer than some parsers.
    """
    last = -1

    def look(number: int, frame: FrameType | None) -> None:
        nonlocal last
        if bed.count == last:
            raise TimeoutError(f"an input took over {seconds} seconds")
        last = bed.count

    before = signal.signal(signal.SIGPROF, look)
    signal.setitimer(signal.ITIMER_PROF, seconds, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def check_text(text: str, path_length: int) -> None:
    """Check that a refusal is one printable line of bounded length."""
    assert text
    assert text.isprintable(), ascii(text)
    assert len(text) < LONGEST_TEXT + path_length, f"{len(text)} characters: {text[:500]}"


_ALL = (
    Target("data.pkl", readers.read_pickle, lambda _: [inputs.program()], on_disk=False),
    Target("archive.zip", readers.read_zip, inputs.make_archives, inputs.make_small_archives),
    Target("model.pth", readers.read_checkpoint, inputs.make_archives),
    Target("model.safetensors", readers.read_tensors, inputs.make_safetensors),
    Target("model.gguf", readers.read_header, inputs.make_gguf, refusals=LlamaBoltsError),
    Target(
        "vocabulary.gguf",
        readers.read_vocabulary,
        inputs.make_vocabularies,
        refusals=LlamaBoltsError,
    ),
    Target("packed.safetensors", readers.read_packed, inputs.make_packed),
    Target(
        "model.safetensors.index.json",
        readers.read_files_of_index,
        as_json(inputs.INDEX),
        beside=dict.fromkeys(inputs.SHARDS, b""),
    ),
    Target(
        "config.json", readers.read_config, as_json(inputs.CONFIG, inputs.OLDER, inputs.MISTRAL)
    ),
    Target(
        "quantization_config.json",
        readers.read_quantization_config,
        as_json(*inputs.QUANTIZATION),
    ),
    Target(
        "generation_config.json",
        readers.read_config,
        as_json(inputs.GENERATION),
        beside={"config.json": json.dumps(inputs.CONFIG).encode()},
    ),
    Target("params.json", lambda _, path: read_params(path), as_json(inputs.PARAMS)),
    Target(
        "tokenizer.ranks",
        readers.read_ranks,
        as_ranks(*SINGLE_BYTES, b"he", b"the"),
        as_ranks(*inputs.FEW_TOKENS),
        TokenizerError,
    ),
    Target("tokenizer.model", readers.read_pieces, inputs.make_pieces, refusals=TokenizerError),
    Target(
        "tokenizer.json",
        readers.read_json_tokenizer,
        as_json(byte_level_file(), metaspace_file()),
        inputs.make_small_tokenizers,
        TokenizerError,
    ),
    Target(
        "tokenizer_config.json",
        readers.read_beside,
        as_json(inputs.TOKENIZER_CONFIG),
        refusals=TokenizerError,
        beside={"tokenizer.model": inputs.make_pieces(Path())[0]},
    ),
    Target(
        "chat_template.jinja",
        readers.read_format,
        as_text(*inputs.TEMPLATES),
        refusals=TokenizerError,
    ),
    Target("chat.json", lambda _, path: read_chat(path), inputs.make_chats, refusals=UsageError),
    Target(
        "strict-json",
        lambda data, _: parse_strict_json(data),
        as_json([1, -2.5e3, None, {"a": "\u00e9\n", "b": [True, False]}], "x"),
        refusals=ValueError,
        on_disk=False,
    ),
    Target(
        "escape",
        readers.filter_text,
        as_text(*inputs.TEXTS),
        refusals=Never,
        on_disk=False,
    ),
)
TARGETS = {target.name: target for target in _ALL}
