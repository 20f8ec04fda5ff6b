"""The document of the explorer: its numbers are those of the run."""

import base64
import json
import re
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from src import ml, trace
from src.explorer import ExplorerError, Store, collect, explore, run_traced
from src.explorer.write import SHARES
from src.inference import Message, SamplingArgs
from src.model import InferenceContext, Model, load_model
from tests.model.families import CONFIGS as FAMILIES
from tests.model.families import write_family

ROOT = Path(__file__).resolve().parents[2]
QUESTION = "What is the capital of Massachusetts? Answer in one word."
PROMPT = "The capital of France is"
KINDS = {"bfloat16": np.uint16}


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model()


class Recorded(list):
    """The op, the values and the dtype of every result, in the order in which ops ran."""

    def __call__(self, call: ml.op.OpCall) -> None:
        self.extend((call.op, np.array(x), x.dtype.name) for x in call.results)


@pytest.fixture(scope="module")
def run(model: Model) -> tuple[dict[str, Any], Store, Recorded, list[int]]:
    ids = model.tokenizer.encode(PROMPT, bos=True, eos=False)
    store = Store()
    seen = Recorded()
    ml.subscribe(seen)
    try:
        found = run_traced(model, ids, 8, SamplingArgs(seed=3, temperature=1.3), store)
    finally:
        ml.unsubscribe(seen)
    return found, store, seen, ids


def stored(store: Store, reference: dict[str, Any]) -> np.ndarray[Any, Any]:
    kind = KINDS.get(reference["dtype"], reference["dtype"])
    data = zlib.decompress(store.blocks[reference["block"]])
    return np.frombuffer(data, kind).reshape(reference["shape"])


def float32_of(store: Store, reference: dict[str, Any]) -> np.ndarray[Any, Any]:
    found = stored(store, reference)
    if reference["dtype"] == "bfloat16":
        return (found.astype(np.uint32) << 16).view(np.float32)
    return found


def of_stage(seen: Recorded, name: str) -> list[np.ndarray[Any, Any]]:
    return [values for op, values, _ in seen if op == name]


def test_values_are_those_of_the_run_bit_for_bit(run):
    document, store, seen, _ = run
    kept = [event for event in document["events"] if event[11] is not None]
    names = {(event[1], document["tensors"][event[5][0][0]][0]) for event in kept}
    assert {
        (8, "xq"),
        (10, "xk"),
        (11, "keys"),
        (13, "weights"),
        (17, "gate"),
        (18, "x"),
    } <= names
    made = {x.astype(np.float32).tobytes() for _, x, _ in seen if x.dtype != np.complex64}
    for event in kept:
        reference, axis, first = event[11]
        if reference["dtype"] == "float32" and reference["shape"][-1:] == [2]:
            continue  # complex
        assert (axis is None or first == 0) or event[5]
        assert float32_of(store, reference).tobytes() in made, event


def test_attention_is_that_of_the_run_within_half_a_step(run):
    document, store, seen, ids = run
    weights = [x.astype(np.float64) for x in of_stage(seen, "softmax")]
    L = document["sizes"]["L"]
    H = document["sizes"]["H"]
    for number, one in enumerate(document["passes"]):
        data = stored(store, one["attention"]["data"])
        assert one["attention"]["rows"] == one["T"] == (len(ids) if number == 0 else 1)
        for layer in range(L):
            expected = weights[number * L + layer]
            rows = [expected[:, r, : one["start"] + r + 1] for r in range(one["T"])]
            flat = np.concatenate(rows, axis=1)
            assert flat.shape == (H, data.shape[2])
            assert np.abs(data[layer] / 255 - flat).max() <= 0.5 / 255 + 1e-9


def test_the_attention_of_layers_with_windows_and_sinks_is_that_of_the_run(tmp_path):
    """The second pass begins at 268, and layers with a window read from 256 on."""
    model = load_model(write_family(tmp_path, "granite_swa"))
    ids = [number % 131 for number in range(268)]
    store = Store()
    seen = Recorded()
    ml.subscribe(seen)
    try:
        found = run_traced(model, ids, 2, SamplingArgs(seed=3), store)
    finally:
        ml.unsubscribe(seen)
    assert found["windows"] == [None, 8, 8, 8]
    assert found["hasSinks"] == [True] * 4
    assert found["ropeOf"] == [0, None, 0, 0]
    assert [len(table) for table in found["rope"]] == [model.args.head_dim // 2]
    weights = of_stage(seen, "softmax")
    last = found["passes"][-1]
    assert (last["start"], last["T"]) == (268, 1)
    data = stored(store, last["attention"]["data"]) / 255
    sinks = stored(store, last["sinks"]) / 255
    largest = []
    for layer in range(4):
        expected = weights[4 + layer].astype(np.float64)[:, 0]  # [H, positions]
        assert expected.shape[1] == (269 - 256 if layer else 269)
        first = 269 - expected.shape[1]
        assert np.abs(data[layer, :, first:] - expected).max() <= 0.5 / 255 + 1e-9
        assert not data[layer, :, :first].any()
        rest = 1 - expected.sum(-1)
        assert np.abs(sinks[layer, :, 0] - rest).max() <= 0.5 / 255 + 1e-6
        largest.append(rest.max())
    assert max(largest) > 0.05


def test_the_lens_of_the_last_layer_is_the_logits(run, model):
    document, store, _, _ = run
    context = InferenceContext(model.args, 64, attention="eager")
    tokens = document["tokens"][: document["passes"][-1]["start"] + 1]
    logits = model.transformer.forward(context, tokens, all_positions=True).numpy()
    for one in document["passes"]:
        lens = {n: stored(store, x) for n, x in one["lens"].items() if n != "rows"}
        assert one["lens"]["rows"] == one["T"]
        for row in range(one["T"]):
            ids = lens["ids"][lens["starts"][row] : lens["starts"][row + 1]]
            kept = lens["logits"][lens["starts"][row] : lens["starts"][row + 1], -1]
            expected = logits[one["start"] + row]
            assert kept.tobytes() == expected[ids].tobytes()
            assert lens["top"][row, -1, 0] == expected.argmax()
            exact = expected.astype(np.float64)
            assert np.isclose(
                lens["log_sums"][row, -1], np.logaddexp.reduce(exact), atol=1e-9
            )
            p = np.exp(exact - np.logaddexp.reduce(exact))
            assert np.isclose(
                lens["entropies"][row, -1], -(p * np.log2(p)).sum(), atol=1e-4
            )
        assert (
            stored(store, one["logits"]).tobytes() == logits[one["start"] + row].tobytes()
        )


@pytest.mark.parametrize("kind", [None, "nf4", "int8", *FAMILIES])
def test_attributions_add_up_to_the_logit(kind, tmp_path):
    """The logit is the engine's; those of Granite and OLMo 2 have more steps than
    Llama's.
    """
    path, quantize = (
        (write_family(tmp_path, kind), None) if kind in FAMILIES else (None, kind)
    )
    model = load_model(path, quantize=quantize)
    store = Store()
    ids = [1, 60, 42, 7]
    forced = [100, 31, 118, 40, 27]
    found = run_traced(model, ids, 5, SamplingArgs(seed=3), store, forced_ids=forced)
    context = InferenceContext(model.args, 16, attention="eager")
    logits = model.transformer.forward(context, ids + forced, all_positions=True).numpy()
    shown = [one for one in found["passes"] if "token" in one]
    assert len(shown) == 5
    for one in shown:
        told = one["attribution"]
        expected = logits[one["start"] + one["T"] - 1]
        assert stored(store, one["logits"]).tobytes() == expected.tobytes()
        logit = float(expected[one["token"]])
        parts = stored(store, told["parts"]).astype(np.float64)
        assert abs(parts.sum() - told["sum"]) < 1e-3
        assert abs(told["sum"] - logit) <= told["bound"]
        # Heads are rounded by the same product as their sum, which the residual stream
        # adds.
        heads = stored(store, told["heads"]).astype(np.float64)
        assert ("biases" in told) == (kind == "gpt_oss")
        assert np.allclose(
            heads.sum(-1) + told.get("biases", 0.0),
            parts[1::2],
            atol=0.02 if quantize is None else 0.4,
        )


def test_the_residual_stream_is_measured_and_no_other_token_is_within_the_bound(run):
    document, store, seen, _ = run
    one = document["passes"][0]
    far = np.abs(stored(store, one["logits"]) - one["attribution"]["sum"])
    assert (far > one["attribution"]["bound"]).mean() > 0.9
    L = document["sizes"]["L"]
    added = of_stage(seen, "add")
    numbers = stored(store, document["passes"][1]["residual"])
    assert numbers.shape == (6 * L + 1, 1)
    streams = [
        x.astype(np.float64) for x in added if x.shape == (1, document["sizes"]["D"])
    ]
    assert np.allclose(
        numbers[1 : 2 * L + 1, 0], [np.sqrt((x**2).mean()) for x in streams[: 2 * L]]
    )


def test_forced_tokens_are_taken_and_what_would_be_drawn_is_told(run, model):
    document, _, _, ids = run
    forced = [*document["tokens"][len(ids) :][:2], 100, 101]
    found = run_traced(
        model, ids, 4, SamplingArgs(temperature=0.0), Store(), forced_ids=forced
    )
    assert found["tokens"] == [*ids, *forced]
    assert "drawn" in found["passes"][2]
    assert found["forced"]
    assert not trace.is_on()


def runs_of(page: str) -> list[dict[str, Any]]:
    [document] = re.findall(r'id="document">([^<]*)<', page)
    return json.loads(zlib.decompress(base64.b64decode(document)))["runs"]


def values_of(run: dict[str, Any], number: int) -> tuple[int, list[int]]:
    """Return how many tokens the values of a pass have, and the layers that have all of
    them.
    """
    layers = range(run["sizes"]["L"])
    of_pass = [event for event in run["events"] if event[0] == number and event[11]]
    lasts = {event[2]: event[11][0]["shape"][0] for event in of_pass if event[1] == 18}
    stages = {
        layer: {event[1] for event in of_pass if event[2] == layer} for layer in layers
    }
    whole = [
        layer
        for layer in layers
        if {6, 8, 10, 11, 13, 14, 15, 16, 17, 18} <= stages[layer]
    ]
    assert set(whole) == {layer for layer in layers if stages[layer]}
    assert len({lasts[layer] for layer in whole}) <= 1
    return lasts[whole[0]] if whole else 0, whole


def test_values_of_layers_take_the_room_that_other_numbers_leave(model):
    [run] = runs_of(explore(model, [Message("user", QUESTION)], 8))
    T = run["passes"][0]["T"]
    layers = [*range(run["sizes"]["L"])]
    assert run["leftOut"] == []
    assert [values_of(run, 0), values_of(run, 1)] == [(T, layers), (1, layers)]


@pytest.mark.parametrize(
    ("room", "layers"), [(100_000, [0]), (140_000, [0, 3]), (190_000, [0, 1, 3])]
)
def test_of_values_the_first_layer_is_kept_then_the_last_then_those_between(
    model, room, layers
):
    ids = model.tokenizer.encode("Hello world", bos=True, eos=False)
    store = Store()
    store._shares = dict.fromkeys(SHARES, 0) | {"values": room}
    run = run_traced(model, ids, 1, SamplingArgs(seed=1), store)
    assert values_of(run, 0) == (len(ids), layers)
    names = {1: "layer 0", 2: "layers 0, 3", 3: "layers 0, 1, 3"}[len(layers)]
    assert f"values: pass 0 keeps the values of {names}" in run["leftOut"]


def test_the_page_of_docs_has_the_shares_and_the_context(model):
    text = " ".join((ROOT / "docs" / "EXPLORER.md").read_text("utf-8").split())
    names = {"logits": "logits", "attention": "attention", "values": "values",
             "lens": "the lens", "residual": "the residual stream"}  # fmt: skip
    for kind, name in names.items():
        assert f"{name} {100 * SHARES[kind]:.0f} %" in text
    assert SHARES.keys() == names.keys()
    [run] = runs_of(explore(model, [Message("user", QUESTION)], 8, SamplingArgs(seed=1)))
    assert f"C = {run['sizes']['C']} in the example" in text
    processed = run["passes"][-1]["start"] + run["passes"][-1]["T"]
    assert f"({len(run['tokens'])}/4096)" in text
    assert f"{processed} filled slots" in text


def test_a_limit_is_kept_and_what_is_left_out_is_said(model):
    assert len(explore(model, [Message("user", QUESTION)], 8)) < 2_000_000
    text = "Hello world. " * 60
    page = explore(model, text, 4, limit=1.0)
    assert len(page) <= 1_000_000
    told = runs_of(page)[0]["leftOut"]
    assert any(line.startswith("attention: positions 0 to ") for line in told)
    assert any(line.startswith("lens: positions 0 to ") for line in told)
    with pytest.raises(ExplorerError, match=r"expected at least 1 MB, got 0\.5"):
        explore(model, text, 4, limit=0.5)


PEAK = """
import resource, sys
from pathlib import Path
from src import trace
from src.explorer import Store, run_traced, save_html
from src.inference import InferenceEngine, SamplingArgs
from src.model import load_model
from src.trace.tracer import Tracer

model, ids, settings, size = load_model(), list(range(600)), (8, SamplingArgs(seed=1)), 0
if sys.argv[1] == "without":
    trace.start(Tracer(model.args.sizes, lambda event: None, wants=lambda *_where: False))
    list(InferenceEngine(model, 608).generate(ids, *settings))
else:
    store = Store()
    run = run_traced(model, ids, *settings, store)
    size = save_html([run], store, Path(sys.argv[1]))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, size)
"""


@pytest.mark.slow
def test_the_writer_takes_at_most_64_megabytes_and_four_times_the_file(tmp_path):
    def peak(where: str | Path) -> tuple[int, ...]:
        command = [sys.executable, "-c", PEAK, str(where)]
        return tuple(map(int, subprocess.check_output(command, cwd=ROOT).split()))

    without, _ = peak("without")
    with_page, size = peak(tmp_path / "page.html")
    assert size > 1_500_000
    assert with_page - without <= 64e6 + 4 * size


def test_another_prompt_and_another_format_stand_beside_a_run(model):
    page = explore(
        model, PROMPT, 4, SamplingArgs(seed=1), beside=load_model(quantize="nf4")
    )
    first, second = runs_of(page)
    assert first["tokens"] == second["tokens"]
    assert (first["weights"], second["weights"]) == ("bfloat16", "nf4")
    assert second["forced"]
    assert not first["forced"]


def test_a_page_has_one_script_and_no_address(model):
    page = explore(model, PROMPT, 1)
    head = page.partition("</head>")[0]
    assert "default-src 'none'; script-src 'sha256-" in head
    assert page.count("<script>") == 1
    without_data = re.sub(r'id="[\w-]+">[^<]*<', "", page)
    addresses = set(re.findall(r"https?://[^\s\"'<]+", without_data))
    assert addresses == {"http://www.w3.org/2000/svg"}
    assert page._repr_html_().startswith('<iframe sandbox="allow-scripts"')


def test_attention_that_deflates_badly_is_cut_to_what_fits(monkeypatch):
    # So that far too many rows are expected to fit.
    monkeypatch.setattr(collect, "_BASE64", 0.01)
    text = "One two three four five six seven. " * 12
    model = load_model()
    ids = model.tokenizer.encode(text, bos=True, eos=False)
    store = Store()
    store._shares["attention"] = 5_000
    found = run_traced(model, ids, 1, SamplingArgs(seed=1), store)
    kept = found["passes"][0]["attention"]
    first = len(ids) - kept["rows"]
    assert 0 < kept["rows"] < len(ids)
    assert kept["data"]["shape"][2] == sum(range(first + 1, len(ids) + 1))
    assert any(
        line == f"attention: positions 0 to {first - 1}" for line in found["leftOut"]
    )


def test_the_logits_after_the_bias_and_the_penalties_are_stored(model):
    """Without a browser: a softmax of what is stored gives the probabilities of the
    trace.
    """
    store = Store()
    ids = model.tokenizer.encode(PROMPT, bos=True, eos=False)
    settings = {"repeat_penalty": 1.5, "frequency_penalty": 1.0, "presence_penalty": 0.5}
    sampling = SamplingArgs(seed=1, logit_bias={7: 2.0}, **settings)
    document = run_traced(model, ids, 5, sampling, store)
    for one in document["passes"]:
        changed = [(step["name"], step["value"]) for step in one["changed"]]
        assert changed == [("logit_bias", None), *settings.items()]
        of_stages = dict(
            zip([x["name"] for x in one["choice"]["stages"]], range(20), strict=False)
        )
        for step in one["changed"]:
            logits = stored(store, one["logits"]).astype(np.float64)
            logits[stored(store, step["ids"])] = stored(store, step["logits"])
            weights = np.exp(logits - logits.max())
            for candidate in one["choice"]["candidates"]:
                expected = candidate["probabilities"][of_stages[step["name"]]]
                found = weights[candidate["token_id"]] / weights.sum()
                assert abs(found - expected) < 1e-6


def test_without_a_penalty_no_logits_are_stored_twice(run):
    document, *_ = run
    assert all(one["changed"] == [] for one in document["passes"])
