"""Loading a model opens its own files and nothing else: an audit hook watches, hostile or
not.

Its chat template is run too, as for the first question.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.model.tiny import BYTES_VOCAB, write_meta_directory
from tests.support.hugging_face_writer import (
    CONFIG,
    random_arrays,
    write_hugging_face_directory,
)
from tests.support.sentencepiece_writer import RESERVED, model_message
from tests.tokenizer.json_files import byte_level_file, changed, write_json

REPOSITORY = Path(__file__).resolve().parents[2]

# Runs in a process of its own, for an audit hook cannot be taken away again.
WATCH = """
import json, sys
from pathlib import Path
from src.inference import ChatTemplate, Message, encode_chat, find_chat_template
from src.ml import LlamaBoltsError
from src.model import load_model

QUESTION = [Message("user", "Hi")]

def load(directory):
    model = load_model(directory)
    try:
        template = find_chat_template(model.source, model.tokenizer)
        encode_chat(model.tokenizer, QUESTION, chat_format=template)
    except LlamaBoltsError as error:
        return f"format: {error}"
    finally:
        model.checkpoint.close()
    return "loaded"

watching, events = False, []

def hook(event, arguments):
    if watching:
        subject = arguments[1:] if event == "compile" else arguments  # the file, not its source
        events.append([event, str(subject[0]) if subject else ""])

first, *others = [Path(line) for line in sys.stdin.read().splitlines()]
load(first)  # what a good model makes Python import, a bad one need not
for text in ("{{ messages[0].content }}", "{{ raise_exception('') }}"):
    try:
        ChatTemplate(text).render_messages(QUESTION)
    except LlamaBoltsError:
        pass
sys.addaudithook(hook)
outcomes = []
for directory in others:
    events.clear()
    watching = True
    try:
        outcome = load(directory)
    except LlamaBoltsError as error:
        outcome = f"refused: {error}"
    finally:
        watching = False
    outcomes.append([outcome, list(events)])
print(json.dumps(outcomes))
"""
BAD = (
    "import",
    "exec",
    "compile",
    "marshal.",
    "pickle.",
    "subprocess.",
    "os.",
    "socket.",
)
HARMLESS = ("os.listdir", "os.scandir")
# Jinja makes a template a program in Python, and runs it.
TEMPLATE_EVENTS = ("compile", "exec")

Damage = Callable[[Path], None]


def meta(directory: Path) -> Path:
    return write_meta_directory(directory, BYTES_VOCAB, tokenizer=True)


def hugging_face(directory: Path) -> Path:
    file = byte_level_file()
    rows = len(file["model"]["vocab"]) + 3
    config = CONFIG | {"vocab_size": rows}
    write_hugging_face_directory(directory, config, random_arrays(config), shards=2)
    return write_json(directory, file, tokenizer_config={"chat_template": None})


def sentencepiece(directory: Path) -> Path:
    config = CONFIG | {"vocab_size": len(RESERVED)}
    write_hugging_face_directory(directory, config, random_arrays(config))
    (directory / "tokenizer.model").write_bytes(model_message(RESERVED))
    return directory


def replaced(name: str, content: bytes | object) -> Damage:
    def damage(directory: Path) -> None:
        text = content if isinstance(content, bytes) else json.dumps(content).encode()
        (directory / name).write_bytes(text)

    return damage


def other_weight_map(file: str) -> Damage:
    return replaced(
        "model.safetensors.index.json", {"weight_map": {"model.norm.weight": file}}
    )


TEMPLATE = "{{ ''.__class__.__mro__[1].__subclasses__() }}{% include '/etc/passwd' %}"
EVIL_SPLIT = {
    "type": "Split",
    "pattern": {"Regex": "(?{import os})(a+)+$"},
    "behavior": "Isolated",
}
EVIL_TOKENIZER = changed(byte_level_file(), pre_tokenizer=EVIL_SPLIT)
EVIL_CONFIG = CONFIG | {"auto_map": {"AutoModel": "evil.Model"}}
DAMAGES: dict[str, tuple[Callable[[Path], Path], Damage]] = {
    "pickle": (meta, replaced("consolidated.00.pth", b"cos\nsystem\n(S'id'\ntR.")),
    "parameters": (meta, replaced("params.json", {"dim": "__import__('os')"})),
    "ranks": (meta, replaced("tokenizer.model", b"!!! 0\n")),
    "index that leads up": (hugging_face, other_weight_map("../../../etc/passwd")),
    "index with an absolute path": (
        hugging_face,
        other_weight_map("/etc/passwd.safetensors"),
    ),
    "index with a device": (hugging_face, other_weight_map("/dev/zero")),
    "index with a long name": (
        hugging_face,
        other_weight_map("x" * 300 + ".safetensors"),
    ),
    "code in the configuration": (hugging_face, replaced("config.json", EVIL_CONFIG)),
    "pattern": (hugging_face, replaced("tokenizer.json", EVIL_TOKENIZER)),
    "template": (hugging_face, replaced("chat_template.jinja", TEMPLATE.encode())),
    "template beside the tokenizer": (
        hugging_face,
        replaced("tokenizer_config.json", {"chat_template": TEMPLATE}),
    ),
    "pieces": (sentencepiece, replaced("tokenizer.model", b"\x0a\xff\xff\xff\xff\x0f")),
    "an id of many digits": (
        sentencepiece,
        replaced("tokenizer_config.json", {"added_tokens_decoder": {"9" * 5000: {}}}),
    ),
}


def watch(first: Path, directories: list[Path]) -> list[Any]:
    """Load the first directory unwatched and the others watched; return what happened."""
    done = subprocess.run(
        [sys.executable, "-c", WATCH],
        input="\n".join(map(str, [first, *directories])),
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    outcomes: list[Any] = json.loads(done.stdout)
    return outcomes


def check_events(directory: Path, events: list[list[str]]) -> None:
    for name, argument in events:
        is_template = name in TEMPLATE_EVENTS and "<template>" in argument
        assert is_template or name in HARMLESS or not name.startswith(BAD), (
            name,
            argument,
        )
        if name == "open":
            assert Path(argument).parent == directory, argument


@pytest.mark.parametrize(
    "write", [meta, hugging_face, sentencepiece], ids=lambda f: f.__name__
)
def test_a_load_touches_nothing_outside_of_its_directory(
    write: Callable[[Path], Path], tmp_path: Path
) -> None:
    good = write(tmp_path / "good")
    twin = write(tmp_path / "twin")
    damages = [(n, damage) for n, (maker, damage) in DAMAGES.items() if maker is write]
    directories = [write(tmp_path / str(number)) for number in range(len(damages))]
    for directory, (_, damage) in zip(directories, damages, strict=True):
        damage(directory)
    outcome, *others = watch(good, [twin, *directories])
    assert outcome[0].startswith(("loaded", "format: "))
    check_events(twin, outcome[1])
    assert any(name == "open" for name, _ in outcome[1])
    for directory, (what, _), (refusal, events) in zip(
        directories, damages, others, strict=True
    ):
        assert refusal.startswith(("refused: ", "format: ")), (what, refusal)
        assert refusal.isprintable()
        check_events(directory, events)
