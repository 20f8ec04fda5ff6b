"""The k-th allocation, the k-th read, the k-th Ctrl-C: afterwards all is as it was."""

import os
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from src.cli.arguments import parse_arguments
from src.cli.console import Console
from src.cli.new_session import open_session
from src.ml import LlamaBoltsError
from src.model import Model, load_model
from tests.hardening.faults import scenes
from tests.hardening.faults.injection import (
    failing_allocation,
    failing_read,
    interrupt,
    lines_of,
)
from tests.hardening.faults.scenes import Scene, strike
from tests.inference.drafts import draft_always
from tests.model.test_isolation import hugging_face, meta, sentencepiece
from tests.support.held import NativeBytes

LAYOUTS: dict[str, Callable[[Path], Path]] = {
    "meta": meta,
    "hugging_face": hugging_face,
    "sentencepiece": sentencepiece,
}
SCENES = ("start", "generate", "encode", "chat", *(f"load {name}" for name in LAYOUTS))


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    top = tmp_path_factory.mktemp("models")
    return {name: write(top / name) for name, write in LAYOUTS.items()}


@pytest.fixture(scope="module")
def model(directories: dict[str, Path]) -> Iterator[Model]:
    loaded = load_model(directories["meta"])
    yield loaded
    loaded.checkpoint.close()


@pytest.fixture(autouse=True)
def _drafts_of_the_same_length_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    draft_always(monkeypatch)


@pytest.fixture
def native() -> Iterator[NativeBytes]:
    with pytest.MonkeyPatch.context() as patch:
        yield NativeBytes(patch)


def scene_of(name: str, model: Model, directories: dict[str, Path]) -> Scene:
    meta_directory = directories["meta"]
    flags = ["-m", str(meta_directory), "-q", "-c", "300", "-n", "5", "--seed", "1"]
    make: dict[str, Callable[[], Scene]] = {
        "start": lambda: scenes.starting(model),
        "generate": lambda: scenes.generating(model),
        "encode": lambda: scenes.encoding(model.tokenizer),
        "chat": lambda: scenes.chatting(
            open_session(parse_arguments(flags), Console(quiet=True))
        ),
        "load nf4": lambda: scenes.loading(meta_directory, quantize="nf4"),
        "load int8": lambda: scenes.loading(meta_directory, quantize="int8"),
    }
    return make[name]() if name in make else scenes.loading(directories[name.split()[1]])


# Ctrl-C before all lines of all scenes takes minutes; 1 selects all of them.
LINES_APART = int(os.environ.get("LINES_APART", "4"))
# Every so many of the moments in the quick tests; in the slow ones, all of them, or all but
# some lines.
some_or_all = pytest.mark.parametrize(
    "share", [1, pytest.param(0, marks=pytest.mark.slow)], ids=["some", "all"]
)


@some_or_all
@pytest.mark.parametrize("name", ["start", "generate", "chat", "load nf4", "load int8"])
def test_each_allocation_may_fail(
    name: str, share: int, model: Model, directories: dict[str, Path], native: NativeBytes
) -> None:
    scene = scene_of(name, model, directories)
    moments = count(1, 1 + 9 * share)
    assert strike(scene, failing_allocation, (LlamaBoltsError,), native, moments) >= 3


@some_or_all
@pytest.mark.parametrize("how", ["error", "end", "short"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_read_of_a_load_may_fail(
    layout: str, how: str, share: int, directories: dict[str, Path], native: NativeBytes
) -> None:
    scene = scenes.loading(directories[layout])
    declared = () if how == "short" else (LlamaBoltsError,)  # a short read is no error
    assert strike(scene, failing_read(how), declared, native, count(1, 1 + share)) >= 2


# A file that Ctrl-C left behind closes itself, of which Python tells where it is asked
# to.
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@some_or_all
@pytest.mark.parametrize("name", SCENES)
def test_ctrl_c_may_come_before_any_line(
    name: str, share: int, model: Model, directories: dict[str, Path], native: NativeBytes
) -> None:
    scene = scene_of(name, model, directories)
    scene.run()
    lines = lines_of(scene.run, visits=2)
    assert len(lines) > 50
    some = lines[:: 101 if share else LINES_APART]
    assert strike(scene, interrupt, (KeyboardInterrupt,), native, some) >= 0.9 * len(some)
