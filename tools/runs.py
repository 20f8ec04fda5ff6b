"""The traced runs shown in pages and diagrams, and the committed explorer page."""

import base64
import contextlib
import dataclasses
import functools
import json
import re
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np

from src import ml, trace
from src.cli.answer import token_text
from src.drawing import Beside, Recorder, TracedRun, draw_all
from src.explorer import explore
from src.inference import InferenceEngine, Message, SamplingArgs
from src.model import InferenceContext, LlamaTransformer, Model, ModelArgs, load_model
from src.trace.records import Event, RowChoice
from src.trace.tracer import Tracer

from .pages import ROOT

PROMPT = "What is the capital of Massachusetts? Answer in one word."
# The same prompt, encoded by Llama 3's tokenizer and chat format. A test compares them.
LLAMA_3_IDS = (
    128000,
    128006,
    882,
    128007,
    271,
    3923,
    374,
    279,
    6864,
    315,
    22108,
    30,
    22559,
    304,
    832,
    3492,
    13,
    128009,
    128006,
    78191,
    128007,
    271,
)
# The sizes of Llama 3.2 (1B, 3B) and of Llama 3.1.
LLAMAS = {
    name: ModelArgs(
        dim, layers, heads, 8, dim // heads, ffn_dim,
        128256, 1e-5, 500000.0, None, 131072, ml.bfloat16,
    )
    for name, dim, layers, heads, ffn_dim in (
        ("1B", 2048, 16, 32, 8192),
        ("3B", 3072, 28, 24, 8192),
        ("8B", 4096, 32, 32, 14336),
        ("70B", 8192, 80, 64, 28672),
        ("405B", 16384, 126, 128, 53248),
    )
}  # fmt: skip
LLAMA_3_1_8B = LLAMAS["8B"]
# The row that chapter 14 shows: the last token, in the head that diagram 13 draws.
ROW = RowChoice(position=26, head=2)
SIZES_8B = LLAMA_3_1_8B.sizes | {"T": len(LLAMA_3_IDS), "S": len(LLAMA_3_IDS), "C": 4096}
PAGE = ROOT / "docs" / "explorer" / "example.html"
_ELEMENT = re.compile(r'<script type="text/plain" id="([\w-]+)">([^<]*)</script>')


@cache
def bundled_model() -> Model:
    """Return the bundled model."""
    return load_model()


@contextlib.contextmanager
def recorded(
    args: ModelArgs, write: Callable[[Event], None] | None = None, **options: Any
) -> Iterator[list[Event]]:
    """Run the `with` block with a trace, and yield the list of its events.

    The list remains empty if the events are passed to `write`.
    """
    events: list[Event] = []
    tracer = Tracer(
        args.sizes,
        write or events.append,
        weight_letters=args.tensor_letters,
        **options,
    )
    trace.start(tracer)
    try:
        yield events
    finally:
        trace.stop()


@cache
def bundled_events() -> tuple[Event, ...]:
    """Return the events of the bundled model's complete answer to the prompt."""
    model = bundled_model()
    engine = InferenceEngine(model, 4096)  # as the command line
    assert model.tokenizer is not None
    text_of = functools.partial(token_text, model.tokenizer)
    wants = Recorder().wants

    def values(stage: int, layer: int | None, step: int | None) -> bool:
        return not step and wants(stage, layer, step)

    with recorded(model.args, text_of=text_of, row=ROW, values=values) as events:
        for _ in engine.chat([Message("user", PROMPT)], sampling=SamplingArgs(seed=1)):
            pass
    return tuple(events)


@cache
def events_8b() -> tuple[Event, ...]:
    """Return the events of a pass over the prompt in two layers with the sizes of the 8B.

    The weights are zeros, which take no memory while they are only read. Shapes do not
    depend on the values.
    """
    args = dataclasses.replace(LLAMA_3_1_8B, n_layers=2, max_context_length=64)
    tensors = {
        name: ml.Tensor.from_numpy(np.zeros(shape, ml.bfloat16.numpy_dtype), name=name)
        for name, shape in args.tensor_shapes.items()
    }
    with recorded(args) as events:
        LlamaTransformer(args, tensors).forward(InferenceContext(args, 64), LLAMA_3_IDS)
    return tuple(events)


@cache
def current_diagrams() -> dict[str, str]:
    """Return the current text of each diagram, by file name."""
    model = bundled_model()
    events = bundled_events()
    sizes = model.args.sizes | {"C": SIZES_8B["C"]}
    beside = Beside(
        "8B", f"Llama 3.1 8B, where this prompt is {SIZES_8B['T']} tokens", SIZES_8B
    )
    return draw_all(TracedRun("the bundled model", sizes, events, beside))


# ---- the page of the explorer ----------------------------------------------------------


@cache
def current_page() -> str:
    """Return the current page, or the committed page if only times differ."""
    made = explore(bundled_model(), [Message("user", PROMPT)], 8, SamplingArgs(seed=1))
    committed = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    return committed if is_same(committed, made) else str(made)


def is_same(first: str, second: str, with_code: bool = True) -> bool:
    """Return whether two pages have the same sources and data, except for times.

    Numbers that NumPy has computed may differ in their last digits between machines.

    Args:
        first: A page.
        second: Another page.
        with_code: Whether the code and the chapter that the pages quote must be the same.
    """
    has_same_sources = _ELEMENT.sub("", first) == _ELEMENT.sub("", second)
    return has_same_sources and _read(first, with_code) == _read(second, with_code)


class _Numbers:
    """A float or an array. Values are equal if only their last digits differ."""

    def __init__(self, values: Any) -> None:
        self._values = np.asarray(values)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Numbers):
            return False
        a = self._values
        b = other._values
        rtol, atol = (1e-4, 1e-4 if a.ndim else 1e-6) if a.dtype.kind == "f" else (0, 0)
        is_alike = (a.dtype, a.shape) == (b.dtype, b.shape)
        return is_alike and np.allclose(a, b, rtol, atol, equal_nan=True)


def _read(page: str, with_code: bool) -> Any:
    """Return the document in a page, with its arrays inserted and without times."""
    data = {
        name: zlib.decompress(base64.b64decode(x)) for name, x in _ELEMENT.findall(page)
    }

    def known(x: dict[str, Any]) -> Any:
        if "block" in x:
            kind = "uint16" if x["dtype"] == "bfloat16" else x["dtype"]
            return _Numbers(
                np.frombuffer(data[f"block-{x['block']}"], kind).reshape(x["shape"])
            )
        return {
            key: value for key, value in x.items() if key not in ("seconds", "machine")
        }

    document = json.loads(
        data["document"],
        object_hook=known,
        parse_float=lambda text: _Numbers(float(text)),
    )
    for run in document["runs"]:
        for event in run["events"]:
            event[6] = None  # its seconds
            if not with_code:
                event[9] = None  # its line of code
    if not with_code:
        del document["stages"], document["sources"]
    return document
