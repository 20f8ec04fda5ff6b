"""The page of the explorer in Chromium, from a file, without a network."""

import base64
import json
import random
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from src.explorer import ExplorerError, Store, explore, run_beside, run_traced, save_html
from src.explorer.run import prompt_of
from src.inference import Message, Sampler, SamplingArgs
from src.inference.patching import scan_patches
from src.ml.op import OpCall, subscribe, unsubscribe
from src.model import InferenceContext, Intervention, load_model
from src.model.saving_gguf import save_gguf
from tests.model.families import write_family
from tests.model.tiny import Tiny, write_meta_directory
from tests.support.browser import api, chromium, quiet_page
from tests.tokenizer.json_files import byte_level_file, write_json

pytestmark = pytest.mark.slow
QUESTION = "What is the capital of Massachusetts? Answer in one word."
VIEWS = (
    "tokens",
    "map",
    "attention",
    "residual",
    "sampling",
    "cache",
    "values",
    "compare",
    "tour",
)
WIDTHS = (390, 1400, 2560)
HOSTILE = (
    "</script><script>document.title='owned'</script>", "<img src=x onerror=alert(1)>",
    "\" onmouseover='alert(2)' \u202e gnp.exe \u2066", "`${alert(3)}` \x00\x1b[31m\u2028",
    "x" * 10_000,
)  # fmt: skip


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("profile"), offline=True) as started:
        yield started


@pytest.fixture
def page(browser) -> Iterator[Any]:
    """A page whose console stays empty and that asks only for its own file."""
    with quiet_page(browser) as (page, told):
        yield page
        assert page.title() == "Inside a run"
    assert len(told) == 1


@pytest.fixture(scope="module")
def two_formats(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, list[dict[str, Any]]]:
    """A page of the bundled model beside its nf4, and the document's runs."""
    model = load_model()
    other = load_model(quantize="nf4")
    store = Store(runs=2)
    ids, ends = prompt_of(model, [Message("user", QUESTION)])
    settings = 8, SamplingArgs(seed=1, temperature=1.0)
    runs = [run_traced(model, ids, *settings, store, end_ids=ends)]
    runs.append(run_beside(other, runs[0], None, *settings, store))
    return saved(runs, store, tmp_path_factory.mktemp("pages") / "two.html"), runs


def saved(runs: list[dict[str, Any]], store: Store, path: Path) -> Path:
    assert save_html(runs, store, path) == path.stat().st_size
    return path


def opened(page, path: Path) -> None:
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-ready]", timeout=60_000)


def go(page, view: str) -> None:
    page.click(f"#tab-{view}")
    page.wait_for_selector(f"#view[data-view={view}]")


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_view_opens_and_fits(two_formats, page, width, scheme):
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 900})
    opened(page, two_formats[0])
    for view in VIEWS:
        go(page, view)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, view
        assert page.locator("#view").inner_text().strip()
        assert page.locator(f"#tab-{view}").get_attribute("aria-selected") == "true"


def test_the_keyboard_reaches_everything(two_formats, page):
    opened(page, two_formats[0])
    for number, view in enumerate(VIEWS, 1):
        page.keyboard.press(str(number))
        page.wait_for_selector(f"#view[data-view={view}]")
    page.locator("#tab-tour").focus()
    page.keyboard.press("ArrowLeft")
    page.wait_for_selector("#view[data-view=compare]")
    assert page.evaluate("document.activeElement.id") == "tab-compare"
    before = page.evaluate("explorer.state.position")
    page.locator(f"#token-{before}").focus()
    page.keyboard.press("ArrowLeft")
    page.wait_for_selector(f"#token-{before - 1}[aria-selected=true]")
    assert page.evaluate("document.activeElement.id") == f"token-{before - 1}"
    page.keyboard.press("3")
    page.wait_for_selector("#view[data-view=attention]")
    page.locator("#attention-grid").focus()
    for key, expected in (("ArrowDown", [1, 0]), ("ArrowRight", [1, 1])):
        page.keyboard.press(key)
        page.wait_for_selector(f"h3:has-text('Layer {expected[0]}, head {expected[1]}')")
    page.locator("#attention-large").focus()
    told = page.locator("#view .readout").first.inner_text()
    page.keyboard.press("ArrowUp")
    assert page.locator("#view .readout").first.inner_text() != told
    page.keyboard.press("2")
    page.wait_for_selector("#stage-8")
    page.locator("#stage-8").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("#stage-heading:has-text('Stage 8')")


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of a model with a window of 8 in the layers 1 to 3, and sinks."""
    directory = tmp_path_factory.mktemp("windowed")
    write_json(directory, byte_level_file())
    model = load_model(write_family(directory, "granite_swa", vocab_size=300))
    store = Store()
    ids = list(b"The quick brown fox jumps.")
    runs = [run_traced(model, ids, 2, SamplingArgs(seed=1), store)]
    return saved(runs, store, directory / "windowed.html")


@pytest.mark.parametrize("width", WIDTHS)
def test_experts_of_a_token_are_shown_with_their_weights(
    tmp_path_factory: pytest.TempPathFactory, page: Any, width: int
) -> None:
    directory = tmp_path_factory.mktemp("experts")
    write_json(directory, byte_level_file())
    model = load_model(write_family(directory, "qwen3_moe", vocab_size=300))
    store = Store()
    ids = list(b"The quick brown fox jumps.")
    run = run_traced(model, ids, 1, SamplingArgs(seed=1), store)  # one pass
    page.set_viewport_size({"width": width, "height": 900})
    opened(page, saved([run], store, directory / "experts.html"))
    page.locator("#tab-experts").click()
    page.evaluate("explorer.show({ position: 5 })")
    page.wait_for_selector("h3:has-text('Experts at position 5')")
    chosen: list[Any] = []
    with observed_experts(chosen):
        context = InferenceContext(model.args, 40)
        model.transformer.forward(context, ids)
    rows = page.locator("#experts-of-token tbody tr").all_inner_texts()
    assert len(rows) == len(chosen) == model.args.n_layers
    for row, (experts, weights) in zip(rows, chosen, strict=True):
        pairs = sorted(zip(weights[5], experts[5], strict=True), reverse=True)
        shown = re.findall(r"expert (\d+) ([0-9.]+)", row.replace("\u00a0", " "))
        assert [int(expert) for expert, _ in shown] == [n for _, n in pairs]
        for (_, percent), (weight, _) in zip(shown, pairs, strict=True):
            assert abs(float(percent) / 100 - weight) < 1e-4
    page.locator("#expert-weights").focus()
    page.keyboard.press("ArrowRight")
    assert "layer 0, expert " in page.locator("#view .readout").first.inner_text()
    uses = sum((experts == 0).sum() for experts, _ in chosen[:1])
    page.locator("#expert-uses").focus()
    for _ in range(model.args.n_experts):
        page.keyboard.press("ArrowLeft")
    text = page.locator("#view .readout").last.inner_text()
    assert text == f"layer 0, expert 0: chosen for {uses} of {len(ids)} tokens"
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@contextmanager
def observed_experts(chosen: list[Any]) -> Iterator[None]:
    """Append the experts and weights of each layer that runs."""

    def observe(call: OpCall) -> None:
        if call.op == "choose_experts":
            chosen.append(tuple(result.numpy() for result in call.results))

    subscribe(observe)
    try:
        yield
    finally:
        unsubscribe(observe)


def test_windows_and_sinks_are_shown_in_the_attention_view(windowed, page):
    opened(page, windowed)
    page.evaluate("explorer.show({ view: 'attention', layer: 2, head: 3, position: 20 })")
    page.wait_for_selector("h3:has-text('Layer 2, head 3')")
    limits = page.locator("#head-limits").inner_text()
    assert "a window of 8: a token attends to itself and to the 7 tokens before" in limits
    assert "Each head has a sink" in limits
    assert page.locator(".outside").count() == 21 - 8
    rows = page.locator("#largest tbody tr")
    assert rows.last.inner_text().startswith("–\tthe sink\t")
    weights = [float(text.split("\t")[2]) for text in rows.all_inner_texts()]
    assert len(weights) == 8 + 1
    assert abs(sum(weights) - 1) < 9 * 0.5 / 255 + 0.01
    page.locator("#attention-large").focus()
    readout = page.locator("#view .readout").first
    for _ in range(21):
        page.keyboard.press("ArrowLeft")
    assert "leaves to the sink: 0." in readout.inner_text()
    page.keyboard.press("ArrowRight")
    assert readout.inner_text().endswith("masked, because it is outside the window")
    page.evaluate("explorer.show({ layer: 0 })")
    page.wait_for_selector("h3:has-text('Layer 0, head 3')")
    assert "window" not in page.locator("#head-limits").inner_text()
    assert page.locator(".outside").count() == 0
    page.evaluate("explorer.show({ layer: 1 })")
    page.wait_for_selector("p:has-text('This layer does not rotate queries and keys')")


STATE = (
    "(({ view, stage, layer, head, position }) => [view, stage, layer, head, position])"
)
AT_FIRST = ["residual", 13, 0, 0, 26]
LINKS = {
    "": AT_FIRST,
    "#stage=13&layer=1&head=2&token=26": ["attention", 13, 1, 2, 26],
    "#stage=8&layer=3&token=5": ["map", 8, 3, 0, 5],
    "#stage=20&view=sampling": ["sampling", 20, 0, 0, 26],
    "#token=0": ["residual", 13, 0, 0, 0],
    "#view=cache": ["cache", 13, 0, 0, 26],
    # Unknown names and values are ignored, each by itself.
    "#stage=22&layer=4&head=6&token=999": AT_FIRST,
    "#stage=0&layer=-1&head=2.5&token=1e1": AT_FIRST,
    "#stage=8&layer=x&view=nothing&run=7&position=3": ["map", 8, 0, 0, 26],
    "#stage=&layer&=&&&": AT_FIRST,
    "#__proto__=1&view=constructor&stage=99999999999999999999": AT_FIRST,
    "#%E0%A4%A&%00=%ff&stage=%37": ["map", 7, 0, 0, 26],
    "#<img src=x onerror=alert(1)>": AT_FIRST,
}


@pytest.mark.parametrize("link", LINKS)
def test_a_link_opens_the_page_at_its_place(two_formats, page, link):
    page.goto(two_formats[0].as_uri() + link)
    page.wait_for_selector("html[data-ready]", timeout=60_000)
    assert page.evaluate(f"{STATE}(explorer.state)") == LINKS[link]
    assert page.locator("#view").get_attribute("data-view") == LINKS[link][0]
    assert page.locator("img").count() == 0


def test_a_link_is_followed_while_the_page_is_open(two_formats, page):
    opened(page, two_formats[0])
    page.evaluate("location.hash = '#stage=17&layer=2&token=28'")
    page.wait_for_selector("#stage-heading:has-text('Stage 17: feed-forward, layer 2')")
    assert page.locator("#map-pass").input_value() == "1"
    page.evaluate("location.hash = '#view=values&stage=13&layer=0&head=4&token=26'")
    page.wait_for_selector("#view[data-view=values]")
    chosen = page.locator("#values-tensor option:checked").inner_text()
    assert chosen == "pass 0, layer 0, stage 13: scores [H, T, S] (matmul)"
    assert page.locator("#values-slice").input_value() == "4"


IN_WINDOW = """(selector) => {
  const box = document.querySelector(selector).getBoundingClientRect();
  const strip = document.getElementById("strip").getBoundingClientRect();
  return box.top >= strip.bottom && box.bottom <= window.innerHeight
    && box.left >= 0 && box.right <= window.innerWidth;
}"""


@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_opens_at_the_position_that_decided_the_answer(two_formats, page, width):
    page.set_viewport_size({"width": width, "height": 800})
    opened(page, two_formats[0])
    assert page.locator("#decided").inner_text() == "'Boston'"
    first = page.locator(".lens tbody tr:first-child")
    assert first.locator("th").inner_text() == "layer 3"
    assert "'Boston'" in first.locator("td.here").inner_text()
    for selector in (".lens td.here", "#decided", "#token-26", "#lens-26"):
        assert page.evaluate("scrollY") == 0
        if selector == "#token-26":
            assert page.locator(selector).is_visible()
        else:
            assert page.evaluate(IN_WINDOW, selector), selector
    page.keyboard.press("ArrowRight")
    page.wait_for_selector("#decided:has-text('<|eot_id|>')")
    assert "token 3849 at position 28" in page.locator("#view").inner_text()
    page.evaluate("explorer.show({ position: 5 })")
    page.click("#to-deciding")
    page.wait_for_selector("#decided:has-text('Boston')")


@pytest.mark.parametrize("width", WIDTHS)
def test_a_link_scrolls_to_the_row_or_the_cell_of_its_token(two_formats, page, width):
    page.set_viewport_size({"width": width, "height": 800})
    places = {
        "view=attention&layer=2&head=1&token=26": "#attention-large ~ .place",
        "view=tokens&token=27": "#all-tokens tr.here td:first-child",
        "view=values&stage=8&layer=0&head=2&token=26": "#values-map ~ .place",
        "view=residual&token=0": ".lens td.here",
    }
    opened(page, two_formats[0])
    for link, selector in places.items():
        page.evaluate("(link) => { scrollTo(0, 0); location.hash = link; }", link)
        view = re.search(r"view=(\w+)", link)[1]
        page.wait_for_selector(f"#view[data-view={view}] {selector}", state="attached")
        page.wait_for_function(IN_WINDOW, arg=selector, timeout=5_000)
        if view == "values":
            readout = page.locator("#view .readout").inner_text()
            assert readout.startswith("xq[26, 64] = ")


def test_stages_9_and_12_show_the_elements_of_earlier_tensors(two_formats, page):
    """Their results are views and copies, which are not stored again."""
    opened(page, two_formats[0])
    code = """async ([stage, name]) => {
      const run = explorer.runs[0];
      const found = run.kept().filter((x) => x.pass === 0 && x.layer === 1
        && x.stage === stage && x.name === name);
      return Promise.all(found.map(async ({ op, offsets, reference }) => {
        const array = await explorer.arrayOf(reference);
        const elements = [];
        for (const i of offsets[0]) for (const j of offsets[1]) for (const k of offsets[2])
          elements.push(array[i + j + k]);
        return { op, shape: offsets.map((x) => x.length), elements };
      }));
    }"""

    def tensors(stage: int, name: str) -> list[tuple[str, Any]]:
        return [
            (one["op"], np.reshape(one["elements"], one["shape"]))
            for one in page.evaluate(code, [stage, name])
        ]

    flat = page.evaluate("""async () => {
      const one = explorer.runs[0].kept().find((x) => x.layer === 1 && x.name === "xq");
      return [...await explorer.arrayOf(one.reference)];
    }""")
    [(op, heads)] = tensors(9, "xq")
    assert op == "reshape"
    assert np.array_equal(heads, np.reshape(flat, heads.shape))
    [(_, keys)] = tensors(11, "keys")
    repeated, transposed, columns = tensors(12, "keys")
    assert [repeated[0], transposed[0]] == ["repeat_heads", "transpose"]
    assert np.array_equal(repeated[1], np.repeat(keys, 3, axis=1))
    assert np.array_equal(transposed[1], repeated[1].transpose(1, 0, 2))
    assert np.array_equal(columns[1], transposed[1].transpose(0, 2, 1))
    page.evaluate("location.hash = '#view=values&stage=12&layer=1&head=5&token=26'")
    page.wait_for_selector("#view .readout:has-text('keys[26, 5, 0] = ')")


def test_the_values_follow_the_strip(two_formats, page):
    opened(page, two_formats[0])
    page.evaluate("location.hash = '#view=values&stage=8&layer=0&token=26'")
    readout = page.locator("#view .readout")
    page.wait_for_selector("#view .readout:has-text('xq[26, 0] = ')")
    page.keyboard.press("ArrowLeft")
    page.wait_for_selector("#view .readout:has-text('xq[25, 0] = ')")
    page.click("#token-27")  # in the next pass
    page.wait_for_selector("#view .readout:has-text('xq[0, 0] = ')")
    chosen = page.locator("#values-tensor option:checked").inner_text()
    assert chosen.startswith("pass 1, layer 0, stage 8: xq ")
    assert readout.count() == 1


def test_heads_are_named_in_the_view_attention(two_formats, page):
    opened(page, two_formats[0])
    go(page, "attention")
    names = np.array(two_formats[1][0]["heads"]["names"])
    found = {
        page.locator(f"#head-kinds tbody tr:nth-child({k + 1}) button").count()
        for k in range(5)
    }
    assert found == {int((names == k).sum()) for k in range(5)}
    page.click("#kind-1-2")  # layer 1, head 2
    page.wait_for_selector("h3:has-text('Layer 1, head 2, which reads key/value head 0')")
    assert page.locator("#view h3").first.inner_text().endswith(", previous token")
    scores = page.locator("#head-scores").inner_text().replace("\u00a0", " ")
    assert "96 % of its weight to the token before" in scores
    assert "previous token" in page.locator("#attention-head").inner_text()


def test_the_heads_that_promoted_the_answer_lead_to_their_attention(two_formats, page):
    opened(page, two_formats[0])
    row = page.locator("#promoting-heads tbody tr").first
    best = page.locator("#largest-head").inner_text()
    assert best.startswith(row.locator("button").inner_text())
    assert "12 ' Massachusetts'" in row.inner_text()
    row.locator("button").click()
    page.wait_for_selector("#view[data-view=attention]")
    assert page.locator("#attention-key").input_value() == "12"


@pytest.mark.parametrize("width", [1400, 2560])
def test_the_row_of_the_token_is_visible_in_the_large_map(two_formats, page, width):
    page.set_viewport_size({"width": width, "height": 900})
    opened(page, two_formats[0])
    go(page, "attention")
    assert page.evaluate(IN_WINDOW, "#attention-large ~ .place")
    assert page.evaluate("scrollY") == 0


@pytest.mark.parametrize("view", ["residual", "attention", "map"])
def test_a_wide_screen_is_used(two_formats, page, view):
    page.set_viewport_size({"width": 2560, "height": 1300})
    opened(page, two_formats[0])
    go(page, view)
    right = page.evaluate(
        "Math.max(...[...document.querySelectorAll('#view table, #view canvas, #view pre')]"
        ".map((one) => one.getBoundingClientRect().right))"
    )
    assert right > 1900


def test_every_control_is_used(two_formats, page):
    opened(page, two_formats[0])
    page.click("#left-out summary")
    for view in VIEWS:
        go(page, view)
        ids = page.locator("#view select").evaluate_all("all => all.map((one) => one.id)")
        for name in ids:
            if name == "change-head" and page.locator("#change-head").count() == 0:
                continue  # only a head has a number
            options = page.locator(f"#{name} option").evaluate_all(
                "all => all.map((x) => x.value)"
            )
            page.select_option(f"#{name}", options[-1])
            page.wait_for_timeout(100)
            assert page.locator(f"#view #{name}").input_value() == options[-1], (
                view,
                name,
            )
    go(page, "tokens")
    page.click("#take-tour")
    page.wait_for_selector("#view[data-view=tour]")
    for view in ("attention", "residual"):
        page.evaluate("explorer.show({ position: explorer.runs[0].promptLength })")
        go(page, view)
        page.click("#drawn-from")
        page.wait_for_selector("#drawn-from", state="detached")
    go(page, "attention")
    chosen = page.locator("#heads button").nth(3)
    name = chosen.inner_text().capitalize()
    chosen.click()
    page.wait_for_selector(f"h3:has-text('{name}, which reads')")
    go(page, "map")
    for stage in range(1, 22):
        page.locator(f"#stage-{stage}").click()
        page.wait_for_selector(f"#stage-heading:has-text('Stage {stage}:')")
    go(page, "values")
    page.select_option("#values-tensor", "0")
    page.wait_for_timeout(200)
    wide = page.locator("#values-map").bounding_box()["width"]
    page.click("#values-larger")
    page.wait_for_timeout(200)
    assert page.locator("#values-map").bounding_box()["width"] > wide
    page.click("#values-smaller")
    page.locator("#values-map").hover(position={"x": 130, "y": 130})
    assert re.search(
        r"\] = .*sign [01]  exponent [01]{8}", page.locator(".readout").inner_text()
    )
    go(page, "tour")
    for step in range(2, 11):
        page.click("#tour-next")
        page.wait_for_selector(f"#tour-title:has-text('{step} of 10')")
        assert re.search(r"\d", page.locator("#tour-text").inner_text())
    page.click("#tour-show")
    page.wait_for_selector("#view[data-view=sampling]")
    go(page, "compare")
    page.select_option("#run", "1")
    page.wait_for_timeout(100)
    assert page.evaluate("explorer.state.run") == 1


def test_a_step_is_shown_within_the_time_of_a_glance(two_formats, page):
    """50 ms on an idle machine; here a bound that a busy one keeps too."""
    opened(page, two_formats[0])
    last = page.evaluate("explorer.runs[0].tokens.length") - 1
    for view in VIEWS:
        go(page, view)
        page.evaluate(f"explorer.show({{ position: {last} }})")
        page.locator(f"#token-{last}").focus()
        times = []
        for position in range(last - 1, last - 6, -1):
            page.keyboard.press("ArrowLeft")
            page.wait_for_selector(f"#token-{position}[aria-selected=true]")
            page.wait_for_timeout(50)
            times.append(float(page.locator("#view").get_attribute("data-milliseconds")))
        assert page.locator("#view").get_attribute("data-view") == view
        assert min(times) < 50, view


def test_the_browser_samples_as_the_engine(two_formats, page):
    path, runs = two_formats
    opened(page, path)
    rng = random.Random(0)
    steps = [n for n, one in enumerate(runs[0]["passes"]) if "token" in one]
    code = """async ([n, settings]) => {
      const [{ logits }] = await explorer.logitsOf(explorer.runs[0].passes[n]);
      return settings.map((one) => {
        const found = explorer.distribution(logits, one);
        return { ids: [...found.ids], probabilities: [...found.probabilities] };
      });
    }"""
    tried = 0
    for n in steps:
        logits = np.array(
            page.evaluate(
                (
                    "async (n) => [...await "
                    "explorer.arrayOf(explorer.runs[0].passes[n].logits)]"
                ),
                n,
            ),
            np.float32,
        )
        settings = [
            SamplingArgs(
                temperature=rng.choice([0.05, 0.6, 1.0, 2.0, rng.uniform(0.01, 5)]),
                top_k=rng.choice([0, 1, 2, 50, 5000, rng.randrange(4096)]),
                top_p=rng.choice([1.0, 0.9, 0.0, rng.random()]),
                min_p=rng.choice([0.0, 1.0, rng.random() / 10, rng.random()]),
            )
            for _ in range(1000 // len(steps) + 1)
        ]
        found = page.evaluate(code, [n, [vars(one) for one in settings]])
        for one, got in zip(settings, found, strict=True):
            ids, probabilities = Sampler(one).distribution(logits)
            assert got["ids"] == ids.tolist(), one
            assert np.abs(np.array(got["probabilities"]) - probabilities).max() <= 1e-6, (
                one
            )
            tried += 1
    assert tried >= 1000


PENALTIES = {"repeat_penalty": 1.3, "frequency_penalty": 0.4, "presence_penalty": -0.5}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"temperature": 0.0, **PENALTIES},
        {"min_p": 0.02, "top_k": 7, **PENALTIES, "logit_bias": {5: 3.0, 300: -100.0}},
    ],
)
def test_the_stages_in_the_browser_are_those_of_the_run(tmp_path, page, settings):
    model = load_model()
    store = Store()
    ids, ends = prompt_of(model, [Message("user", "Count from 1 to 9.")])
    run = run_traced(model, ids, 8, SamplingArgs(seed=5, **settings), store, end_ids=ends)
    opened(page, saved([run], store, tmp_path / "stages.html"))
    code = """async (n) => {
      const one = explorer.runs[0].passes[n];
      const stages = explorer.stagesOf(await explorer.logitsOf(one), one.sampling);
      return stages.map(([title, found]) => ({
        title,
        kept: found.ids.length,
        probabilities: one.choice.candidates.map(({ token_id }) =>
          found.probabilities[explorer.placeOf(found.ids, token_id)] ?? 0),
      }));
    }"""
    drawn = [n for n, one in enumerate(run["passes"]) if "token" in one]
    assert len(drawn) >= 3
    for n in drawn:
        choice = run["passes"][n]["choice"]
        stages = page.evaluate(code, n)
        assert [stage["title"].split()[0].replace("-", "_") for stage in stages] == [
            stage["name"] for stage in choice["stages"]
        ]
        assert [stage["kept"] for stage in stages] == [
            stage["kept"] for stage in choice["stages"]
        ]
        ours = np.transpose([each["probabilities"] for each in choice["candidates"]])
        theirs = np.array([stage["probabilities"] for stage in stages])
        assert np.abs(ours - theirs).max() <= 1e-6


def test_the_sliders_strike_out_what_a_filter_removes(two_formats, page):
    opened(page, two_formats[0])
    go(page, "sampling")
    assert "as in the run" in page.locator("#sampling-drawn").inner_text()
    page.locator("#sampling-top_k").focus()
    for _ in range(60):
        page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowRight")
    assert page.locator("#sampling-top_k").input_value() == "1"
    assert page.locator("#candidates tr.out").count() >= 29
    page.click("#sampling-reset")
    assert page.locator("#sampling-top_k").input_value() == "50"


def test_a_run_without_random_numbers_shows_the_most_probable_token(tmp_path, page):
    model = load_model()
    store = Store()
    ids, ends = prompt_of(model, [Message("user", QUESTION)])
    run = run_traced(model, ids, 2, SamplingArgs(temperature=0.0), store, end_ids=ends)
    opened(page, saved([run], store, tmp_path / "greedy.html"))
    go(page, "sampling")
    for name in ("temperature", "top_p"):
        page.locator(f"#sampling-{name}").fill("1")
    assert page.locator("#candidates tr.out").count() == 0
    assert "as in the run" in page.locator("#sampling-drawn").inner_text()


def test_the_first_difference_of_two_formats_is_named(two_formats, page):
    opened(page, two_formats[0])
    go(page, "compare")
    said = page.locator("#first-difference").inner_text()
    found = page.evaluate("async () => explorer.compareRuns(...explorer.runs)")
    first = found["first"]
    depth = "the embedding" if first["depth"] == 0 else f"layer {first['depth'] - 1}"
    assert f"after {depth} at position {first['position']}:" in said
    for row in found["cells"][: first["depth"]]:
        assert all(cell["isSame"] for cell in row)
    told = page.locator("#answer-difference").inner_text()
    assert "At position 26, the first token of the answer, 'Boston'," in told
    assert told.endswith("It is the most probable token of both runs.")
    assert all(
        one["isSame"] for one in found["cells"][first["depth"]][: first["position"]]
    )


COMMANDS = {
    "chat": (
        [Message("user", QUESTION)],
        f'-p "{QUESTION}" -n 2 --seed 1 --temperature 0.6 --top-k 50 --top-p 0.9',
    ),
    "quoted": (
        [Message("system", "Be $HOME."), Message("user", 'It\'s "so"!')],
        "-s 'Be $HOME.' -p 'It'\\''s \"so\"!' -n 2 --temperature 0 --repeat-penalty 1.3",
    ),
    "completion": (
        "The capital of France is",
        '--completion -p "The capital of France is" -n 2 --temperature 0',
    ),
    "unsafe": (
        [Message("user", "rm\x03; exit\n")],
        "-f prompt.txt -n 2 --temperature 0",
    ),
    "conversation": (
        [Message("user", "Hi"), Message("assistant", "Hi!"), Message("user", "Bye")],
        "... -n 2 --temperature 0",
    ),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_command_for_one_change_is_made_from_the_controls(tmp_path, page, name):
    prompt, expected = COMMANDS[name]
    sampling = SamplingArgs(seed=1)
    if name != "chat":
        penalty = 1.3 if name == "quoted" else 1.0
        sampling = SamplingArgs(temperature=0.0, repeat_penalty=penalty)
    model = load_model()
    (tmp_path / "one.html").write_text(explore(model, prompt, 2, sampling), "utf-8")
    opened(page, tmp_path / "one.html")
    go(page, "attention")
    page.select_option("#attention-layer", "1")
    page.select_option("#attention-head", "2")
    page.click("#what-if")
    page.wait_for_selector("#view[data-view=compare]")

    def command() -> str:
        return page.locator("#change-command").inner_text()

    def whole(change: str) -> str:
        end = "--explore changed.html --explore-with base"
        return f'python -m src.main {expected} --set-activation "{change}" {end}'

    assert command() == whole("layers.1.attention.heads[2]=0")
    for control, value in (
        ("part", "feed_forward"),
        ("layer", "3"),
        ("value", "*=0.5"),
        ("position", "1"),
    ):
        page.select_option(f"#change-{control}", value)
        page.wait_for_timeout(50)
    assert command() == whole("layers.3.feed_forward@1*=0.5")
    assert page.locator("#change-head").count() == 0
    assert shlex.split(command())[:3] == ["python", "-m", "src.main"]


def test_one_change_is_compared_with_the_run_without_it(tmp_path, page):
    model = load_model()
    change = Intervention.zero(model, "layers.3.feed_forward")
    settings = 2, SamplingArgs(temperature=0.0)
    prompt = [Message("user", QUESTION)]
    html = explore(model, prompt, *settings, interventions=[change], beside=model)
    (tmp_path / "changed.html").write_text(html, "utf-8")
    opened(page, tmp_path / "changed.html")
    go(page, "compare")
    said = page.locator("#first-difference").inner_text()
    assert said.startswith("The top token of the lens first differs after layer 3 at")
    told = page.locator("#answer-difference").inner_text()
    assert told.endswith("The most probable token of the second run is 'Boston'.")
    assert "changed layers.3.feed_forward=0" in page.locator("#view").inner_text()


def test_patches_are_shown_as_maps(tmp_path, page):
    model = load_model()
    other = QUESTION.replace("Massachusetts", "Vermont")
    prompts = [[Message("user", text)] for text in (QUESTION, other)]
    greedy = SamplingArgs(temperature=0.0)
    html = explore(model, prompts[0], 2, greedy, beside_prompt=prompts[1], patches=True)
    ids = [prompt_of(model, prompt)[0] for prompt in prompts]
    scan = scan_patches(model, *ids)
    (tmp_path / "patches.html").write_text(html, "utf-8")
    opened(page, tmp_path / "patches.html")
    go(page, "compare")
    for effects, name in (
        (scan.residual, "residual"),
        (np.hstack([scan.heads, scan.feed_forward[:, None]]), "parts"),
    ):
        layer, column = np.unravel_index(effects.argmax(), effects.shape)
        readout = page.locator(f"output[for=patches-{name}]").inner_text()
        where, _, value = readout.rpartition(": ")
        assert f"layer {layer}, " in where
        assert float(value) == pytest.approx(effects[layer, column], abs=1e-3)
        page.locator(f"#patches-{name}").focus()
        page.keyboard.press("Enter" if name == "residual" else "ArrowLeft")
        if name == "residual":
            page.wait_for_selector("#view[data-view=residual]")
            assert page.evaluate("explorer.state.position") == column
            go(page, "compare")
    with pytest.raises(ExplorerError, match="patches=True requires beside_prompt"):
        explore(model, prompts[0], 1, patches=True)


def test_two_prompts_of_different_length_differ_where_their_texts_do(tmp_path, page):
    model = load_model()
    store = Store(runs=2)
    settings = 4, SamplingArgs(temperature=0.0)
    ids, ends = prompt_of(model, "The capital of France is")
    runs = [run_traced(model, ids, *settings, store, end_ids=ends)]
    other = prompt_of(model, "The capital of the state of Massachusetts is")
    runs.append(run_beside(model, runs[0], other, *settings, store))
    opened(page, saved(runs, store, tmp_path / "prompts.html"))
    go(page, "compare")
    same = next(i for i, (x, y) in enumerate(zip(ids, other[0], strict=False)) if x != y)
    assert same >= 3
    said = page.locator("#first-difference").inner_text()
    assert f"after the embedding at position {same}:" in said


def test_hostile_texts_are_only_shown(two_formats, tmp_path, page):
    path, runs = two_formats
    runs = json.loads(json.dumps(runs))
    store = Store(runs=2)
    ids = list(runs[0]["texts"])
    for record in runs:
        record["name"] = record["model"] = HOSTILE[0]
        record["prompt"] = {"messages": [{"role": HOSTILE[1], "content": HOSTILE[2]}]}
        record["leftOut"] = [HOSTILE[0]]
        for number, token in enumerate(ids):
            record["texts"][token] = [HOSTILE[number % len(HOSTILE)]]
    # The arrays are those of the first page.
    text = path.read_text("utf-8")
    blocks = re.findall(r'id="block-\d+">([^<]*)<', text)
    store.blocks = [base64.b64decode(block) for block in blocks]
    opened(page, saved(runs, store, tmp_path / "hostile <b>&'.html"))
    page.set_viewport_size({"width": 1280, "height": 900})
    for view in VIEWS:
        go(page, view)
        assert page.locator("img").count() == 0
        assert page.evaluate("document.documentElement.scrollWidth") <= 1280, view
    go(page, "tokens")
    assert "</script><script>document.title" in page.locator("#all-tokens").inner_text()
    assert "\\u{202e}" in page.locator("#all-tokens").inner_text()
    assert "\u202e" not in page.content()


def test_the_policy_refuses_every_other_script(two_formats, tmp_path, browser):
    page = browser.new_page()
    told = []
    page.on("console", lambda message: told.append(message.text))
    text = two_formats[0].read_text("utf-8")
    changed = text.replace("</body>", "<script>document.title = 'owned'</script></body>")
    path = tmp_path / "changed.html"
    path.write_text(changed, "utf-8")
    opened(page, path)
    assert page.title() == "Inside a run"
    assert any("Content Security Policy" in line for line in told)
    with pytest.raises(api.Error, match="TrustedHTML"):
        page.evaluate("document.body.innerHTML = '<b>x</b>'")
    page.close()


def test_a_notebook_shows_the_page_in_a_frame_that_can_do_nothing_else(tmp_path, browser):
    path = tmp_path / "notebook.html"
    path.write_text(
        f"<!DOCTYPE html>{explore(load_model(), 'a b', 1)._repr_html_()}", "utf-8"
    )
    page = browser.new_page()
    page.goto(f"file://{path}")
    frame = page.frame_locator("iframe")
    frame.locator("html[data-ready]").wait_for(timeout=60_000)
    frame.locator("#tab-residual").click()
    frame.locator("#view[data-view=residual] #lens-position").wait_for()
    page.close()


@pytest.mark.parametrize(
    ("quantized", "in_file", "expected"),
    [
        (None, None, "nf4"),
        ("nf4", None, "int8"),
        ("int8", None, "nf4"),
        (None, "q8_0", "MODEL"),
    ],
)
def test_compare_recommends_a_format_that_works_for_the_run(
    tmp_path, page, quantized, in_file, expected
):
    path = None
    if in_file is not None:
        path = tmp_path / "model.gguf"
        save_gguf(None, path, in_file)
    model = load_model(path, quantize=quantized)
    (tmp_path / "one.html").write_text(explore(model, "Hi", 1), "utf-8")
    opened(page, tmp_path / "one.html")
    go(page, "compare")
    lines = page.locator("#how-to-compare").inner_text().splitlines()
    assert lines[0] == f"--explore --explore-with {expected}"
    assert "null" not in page.locator("#view").inner_text()
    assert "--explore-prompt" in lines[1]
    assert ("quantized in their file" in page.locator("#view").inner_text()) == bool(
        in_file
    )


def test_the_map_says_that_the_section_describes_other_runs(two_formats, page):
    opened(page, two_formats[0])
    go(page, "map")
    text = page.locator("#view").inner_text()
    assert "come from the book's own runs" in page.locator("#section-run").inner_text()
    assert "log of this run" not in text
    assert "Its lines in the log of the run of this chapter" in text


CUT = """() => [...document.querySelectorAll("#view *, #left-out")].filter((one) =>
  getComputedStyle(one).overflowY !== "visible" && one.scrollHeight > one.clientHeight + 1
).map((one) => `${one.tagName}.${one.className}: ${one.innerText.slice(0, 80)}`)"""
UNMARKED = """() => [...document.querySelectorAll("#view .scroll")].filter((one) =>
  (one.scrollWidth > one.clientWidth + 1) !== one.classList.contains("wide")).length"""


@pytest.mark.parametrize("width", [390, 1400])
def test_lists_of_many_layers_are_shown_whole_or_say_that_they_scroll(
    tmp_path, page, width
):
    config = Tiny("deep", dim=16, layers=40, heads=2, kv_heads=1, ffn=32, vocab=512)
    model = load_model(write_meta_directory(tmp_path / "deep", config, tokenizer=True))
    (tmp_path / "deep.html").write_text(explore(model, "x" * 20, 2), "utf-8")
    page.set_viewport_size({"width": width, "height": 700})
    opened(page, tmp_path / "deep.html")
    for view in VIEWS:
        go(page, view)
        assert page.evaluate(CUT) == [], view
        assert page.evaluate(UNMARKED) == 0, view
    go(page, "residual")
    for layer in range(40):
        assert page.locator(f"#stream >> text='layer {layer}'").is_visible()
    page.set_viewport_size({"width": 2560, "height": 700})
    page.wait_for_timeout(100)
    assert page.evaluate(UNMARKED) == 0


def test_a_table_of_hundreds_of_rows_scrolls_and_says_so(tmp_path, page):
    (tmp_path / "long.html").write_text(explore(load_model(), "a b " * 200, 1), "utf-8")
    opened(page, tmp_path / "long.html")
    go(page, "tokens")
    rows = page.evaluate("explorer.runs[0].tokens.length")
    assert rows > 300
    caption = page.locator("#all-tokens caption").inner_text()
    assert caption.endswith(f"({rows} rows: scroll down in the table)")
    cut = page.evaluate(CUT)
    assert len(cut) == 1
    assert cut[0].startswith("DIV.scroll long: All tokens")
