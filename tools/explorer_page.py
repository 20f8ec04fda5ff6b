"""The committed page of the explorer, its pictures, and ten questions that it answers.

`python -m tools.update_docs` makes the page again where it is not current. `python -m
tools.explorer_page` makes the pictures of it again, with Chromium, and the page if need be. Needs
the `docs` extra.
"""

import base64
import io
import json
import math
import re
import shutil
import tempfile
import zlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from src import ml
from src.explorer import explore
from src.inference import InferenceEngine, Message, Sampler, SamplingArgs, Step
from src.model.rope import inverse_frequencies

from .pages import ROOT, table
from .runs import PROMPT, bundled_model, traced

PAGE = ROOT / "docs" / "explorer" / "example.html"
SAMPLING = SamplingArgs(seed=1)
NEW_TOKENS = 8
WORD = "Massachusetts"
TEMPERATURE = 1.5
# What depends on the machine and on the moment.
_TIMES = ("seconds", "machine")
_SECONDS = 6  # the place in an event
# View, scheme, what is clicked first, and the height: the width is 1280.
_PICTURES = {
    "attention": ("attention", "light", ["#drawn-from"], 1000),
    "residual": ("residual", "light", ["#drawn-from"], 830),
    "map": ("map", "dark", [], 900),
    "sampling": ("sampling", "light", [], 560),
}
BROWSER_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
_ELEMENT = re.compile(r'<script type="text/plain" id="([\w-]+)">([^<]*)</script>')
_KINDS = {"bfloat16": "uint16"}


@cache
def current_page() -> str:
    """Return the page as it should be: the committed one, if it says the same but for times."""
    made = explore(bundled_model(), [Message("user", PROMPT)], NEW_TOKENS, SAMPLING)
    committed = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    return committed if is_same(committed, made) else str(made)


def is_same(first: str, second: str) -> bool:
    """Return whether two pages have the same sources and say the same of a run, but for times.

    Numbers that NumPy computed may differ in their last digits from machine to machine.
    """
    if _ELEMENT.sub("", first) != _ELEMENT.sub("", second):
        return False
    return _equal(_contents(first), _contents(second))


def _contents(page: str) -> Any:
    """Return the document of a page, with its arrays in their places and without times."""
    data = {name: zlib.decompress(base64.b64decode(x)) for name, x in _ELEMENT.findall(page)}

    def known(x: Any) -> Any:
        if isinstance(x, dict) and "block" in x:
            kind = _KINDS.get(x["dtype"], x["dtype"])
            return np.frombuffer(data[f"block-{x['block']}"], kind).reshape(x["shape"])
        if isinstance(x, dict):
            return {key: known(value) for key, value in x.items() if key not in _TIMES}
        return [known(value) for value in x] if isinstance(x, list) else x

    document = json.loads(data["document"])
    for run in document["runs"]:
        for event in run["events"]:
            event[_SECONDS] = None
    return known(document)


def _equal(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(_equal, a, b))
    if isinstance(a, float):
        return math.isclose(a, b, rel_tol=1e-4, abs_tol=1e-6)
    if not isinstance(a, np.ndarray):
        return bool(a == b)
    tolerance = 1e-4 if a.dtype.kind == "f" else 0
    return (a.dtype, a.shape) == (b.dtype, b.shape) and np.allclose(
        a, b, tolerance, tolerance, equal_nan=True
    )


@dataclass(frozen=True)
class Click:
    """One click: an element, by its CSS selector, and the value that is chosen in it, if any."""

    text: str
    selector: str
    value: str | None = None


@dataclass(frozen=True)
class Question:
    """A question that the page answers."""

    text: str  # the question
    clicks: tuple[Click, ...]  # from the page as it opens
    reads: tuple[str, ...]  # where the answer is: CSS selectors, in order
    answer: str  # the answer by the engine's own numbers, in the words of the page


Array = npt.NDArray[Any]


def _observed_run() -> tuple[list[int], list[Step], list[tuple[str, Array]]]:
    """Return prompt, steps, and every op with its result: the run, without the explorer."""
    model = bundled_model()
    seen: list[tuple[str, Array]] = []

    def note(call: ml.op.OpCall) -> None:
        seen.extend((call.op, np.array(x.numpy(), copy=True)) for x in call.results)

    with traced(model.args.sizes) as events:
        ml.subscribe(note)
        try:
            engine = InferenceEngine(model, 64)
            steps = list(engine.chat([Message("user", PROMPT)], NEW_TOKENS, SAMPLING))
        finally:
            ml.unsubscribe(note)
    ids = next(list(event.details["ids"]) for event in events if "ids" in event.details)
    return ids, steps, seen


@cache
def questions() -> tuple[Question, ...]:
    """Return the ten questions, with answers that are computed without the explorer."""
    model = bundled_model()
    args, transformer, tokenizer = model.args, model.transformer, model.tokenizer
    assert tokenizer is not None
    ids, steps, seen = _observed_run()
    T, L, H, K, h = len(ids), args.n_layers, args.n_heads, args.n_kv_heads, args.head_dim
    word = next(i for i in range(T) if tokenizer.decode(ids[: i + 1]).endswith(WORD))
    drawn = steps[0].token_id
    name, word_name = f"'{tokenizer.decode([drawn])}'", f"'{tokenizer.decode([ids[word]])}'"

    weights = np.array([x for op, x in seen if op == "softmax"][:L]).astype(np.float64)
    to_word = weights[:, :, -1, word]  # [L, H]
    looking = np.unravel_index(np.rint(to_word * 255).argmax(), to_word.shape)  # as it is stored
    added = [x for op, x in seen if op == "add" and x.shape == (T, args.dim)][: 2 * L]
    embedded = next(x for op, x in seen if op == "get_rows").astype(np.float32)
    streams = np.array([embedded[-1], *(x[-1] for x in added)])  # [1 + 2L, D]
    products = (ml.Tensor.from_numpy(np.ascontiguousarray(streams[::2])), transformer.output)
    logits = ml.linear_transformation(
        transformer.norm.forward(products[0]), products[1], dtype=ml.float32
    ).numpy()  # [1 + L, V]
    first = next(d for d, row in enumerate(logits) if row.argmax() == drawn)
    exact = logits[-1].astype(np.float64)
    chance = float(np.exp(exact[drawn] - np.logaddexp.reduce(exact)))

    final = streams[-1].astype(np.float64)
    row = ml.get_rows(transformer.output, ml.Tensor.from_numpy(np.array([drawn], np.int32)))
    direction = row.numpy()[0].astype(np.float64) * transformer.norm.weight.numpy()
    direction /= np.sqrt(np.square(final).mean() + args.norm_eps)  # [D]
    parts = np.diff(streams.astype(np.float64), axis=0, prepend=0.0) @ direction
    best = int(parts.argmax())
    half = "attention" if best % 2 else "feed-forward"
    part = f"layer {(best - 1) // 2} {half}" if best else "embedding"
    outputs = [x[:, -1].astype(np.float64) for op, x in seen if op == "matmul"][1 : 2 * L : 2]
    shares = np.empty((L, H))
    for layer, i in np.ndindex(L, H):
        wo = transformer.layers[layer].attention.wo.numpy()[:, i * h : (i + 1) * h]  # [D, h]
        shares[layer, i] = outputs[layer][i] @ wo.T @ direction
    head = np.unravel_index(shares.argmax(), shares.shape)

    sampler = Sampler(SamplingArgs(seed=SAMPLING.seed, temperature=TEMPERATURE))
    sampler.observe(ids)
    warmer = sampler.sample(logits[-1], T)
    left = len(sampler.distribution(logits[-1])[0])
    same = "as in the run" if warmer == drawn else "not the run's token"
    angle = math.degrees((T - 1 - word) * float(inverse_frequencies(
        h, args.rope_theta, args.rope_scaling).numpy()[0])) % 360  # fmt: skip
    bits = f"{np.array([embedded[0, 0]], np.float32).view(np.uint32)[0]:032b}"
    filled = T + len(steps) - 1
    nbytes = 2 * L * K * h * args.dtype.itemsize * filled
    attention = Click("Attention", "#tab-attention")
    before = Click(f"show position {T - 1}", "#drawn-from")
    at_word = Click(f"token looked at: {word} {word_name}", "#attention-key", str(word))
    residual, sampling = (
        Click("Residual stream", "#tab-residual"),
        Click("Sampling", "#tab-sampling"),
    )
    return (
        Question(
            f"How probable was {name} for the model, before any filter?",
            (), ("#all-tokens tr.here td:nth-child(5)",), f"{100 * chance:.2f} %",
        ),
        Question(
            f"Which head looks at {word_name} most when {name} is drawn, with which weight?",
            (attention, before, at_word), ("#heads tbody tr:first-child",),
            f"layer {looking[0]}, head {looking[1]}: {to_word.max():.3g}",
        ),
        Question(
            "By how many degrees, modulo 360, does RoPE rotate pair 0 between these two positions?",
            (attention, before, at_word), (".clock:first-child small",), f"0: {angle:.3g}°",
        ),
        Question(
            f"After which layer is {name} on top for the first time?",
            (residual, before),
            (f'#lens-position tr:has(td:nth-child(2) bdi:text-is("{name}")) td:first-child',),
            f"layer {first - 1}" if first else "embedding",
        ),
        Question(
            f"Which part of the network promoted {name} most?",
            (residual,), ("#largest-part",), f"{part}, +{parts.max():.3g}",
        ),
        Question(
            "Which head did, of all that attention added?",
            (residual,), ("#largest-head",),
            f"layer {head[0]}, head {head[1]}, +{shares.max():.3g}",
        ),
        Question(
            f"What would temperature {TEMPERATURE} have drawn, and how many tokens are left then?",
            (sampling, Click(f"temperature {TEMPERATURE}", "#sampling-temperature", "1.5")),
            ("#sampling-drawn bdi", "#sampling-same", "#candidates tr.sum td:last-child"),
            f"'{tokenizer.decode([warmer])}', {same}, {left}",
        ),
        Question(
            "What shape have the scores, and how many operations does their product take?",
            (Click("Map", "#tab-map"),),
            tuple(f"#ops tbody tr:first-child td:nth-child({n})" for n in (2, 6)),
            f"scores [{H}, {T}, {T}], {2 * h * H * T * T:,}",
        ),
        Question(
            "What is the first element of the first token's embedding, and its bits?",
            (Click("Values", "#tab-values"),), ("#view .readout",),
            f"x[0, 0] = {float(embedded[0, 0])!r}, sign {bits[0]}, exponent {bits[1:9]}, "
            f"fraction {bits[9:16]}",
        ),
        Question(
            "How many bytes of the cache are filled in the end, and why did the answer stop?",
            (Click("Cache", "#tab-cache"),),
            tuple(f"#passes tbody tr:last-child td:nth-child({n})" for n in (5, 10)),
            f"{nbytes:,}, {steps[-1].stop_reason}",
        ),
    )  # fmt: skip


def exercises(_page: Path, _argument: str) -> str:
    """Return the questions as a table, each with its clicks and its answer."""
    rows = []
    for number, one in enumerate(questions(), 1):
        clicks = " → ".join(click.text for click in one.clicks)
        count = f"{len(one.clicks)}: {clicks}" if clicks else "none: the page opens with it"
        rows.append((number, one.text, count, one.answer))
    return table("| | question | clicks | answer |\n|---:|---|---|---|", rows)


def draw_pictures() -> None:
    """Make the pictures of the committed page: eight bits a pixel."""
    from PIL import Image
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play, tempfile.TemporaryDirectory() as profile:
        context = play.chromium.launch_persistent_context(
            profile, executable_path=shutil.which("chromium"), args=BROWSER_FLAGS, offline=True
        )
        for name, (view, scheme, clicks, height) in _PICTURES.items():
            page = context.new_page()
            page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
            page.set_viewport_size({"width": 1280, "height": height})
            page.goto(PAGE.as_uri())
            page.wait_for_selector("html[data-ready]")
            for selector in (f"#tab-{view}", *clicks):
                page.click(selector)
                page.wait_for_timeout(300)
            page.evaluate("document.activeElement.blur()")
            image = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
            image.quantize(256, dither=Image.Dither.NONE).save(
                PAGE.with_name(f"{name}.png"), optimize=True
            )
            page.close()
        context.close()


if __name__ == "__main__":
    Path(PAGE).parent.mkdir(exist_ok=True)
    PAGE.write_text(current_page(), encoding="utf-8")
    draw_pictures()
