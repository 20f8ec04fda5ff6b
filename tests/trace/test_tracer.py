import sys
from collections.abc import Sequence
from dataclasses import replace
from types import FrameType
from typing import Any

import numpy as np
import pytest

from src import ml, trace
from src.inference import InferenceEngine, Message, SamplingArgs, encode_chat
from src.model import InferenceContext, LlamaTransformer, Model, load_model
from src.trace.events import STAGES, fits
from src.trace.records import Event, RowChoice
from src.trace.tracer import statistics, symbols
from tests.model.families import CONFIGS, write_family
from tests.model.tiny import BYTES_VOCAB, token_ids
from tests.trace.recording import DIFFERENT, different_transformer
from tools.runs import recorded

GREEDY = SamplingArgs(temperature=0.0)
PROMPT = [number * 5 for number in range(22)]


def pass_events(
    more: Sequence[int] = (), length: int = 64, **options: Any
) -> list[Event]:
    """Returns the events of a pass over the prompt, or over more tokens after it."""
    transformer = different_transformer()
    context = InferenceContext(DIFFERENT, length)
    if more:
        transformer.forward(context, PROMPT)
    with recorded(DIFFERENT, **options) as events:
        transformer.forward(context, more or PROMPT, context.length)
    return events


def test_the_stages_of_an_answer_come_in_run_order(model):
    engine = InferenceEngine(model, 64)
    with recorded(model.args) as events:
        steps = list(engine.chat([Message("user", "hi")], 2, GREEDY))
    marks = [e.stage for e in events if e.op == "mark"]
    passes = [3, 4, *(list(range(5, 19)) * 2), 19, 20, 21]
    assert marks == [1, 2, *passes, *passes]
    first, second = (e for e in events if e.stage == 21)
    assert [first.details["token"], second.details["token"]] == [
        s.token_id for s in steps
    ]
    assert second.details["stop_reason"] == "max tokens"
    prompt = encode_chat(model.tokenizer, [Message("user", "hi")])
    (encoded,) = (e for e in events if e.stage == 1)
    assert encoded.details["messages"] == [{"role": "user", "content": "hi"}]
    assert encoded.details["ids"] == prompt
    assert [e.position for e in events if e.stage == 20] == [len(prompt), len(prompt) + 1]
    (tokens,) = (x for e in events if e.stage == 2 for x in e.outputs)
    shown = (tokens.name, tokens.shape, tokens.letters, tokens.dtype)
    assert shown == ("tokens", (len(prompt),), ("T",), "int32")
    sampling, _ = (e for e in events if e.stage == 20)
    assert [(x.name, x.letters) for x in sampling.inputs] == [("logits", ("V",))]
    assert sampling.details["sampling"]["temperature"] == 0.0


def numbers(letters: tuple[str, ...], T: int, S: int) -> tuple[int, ...]:
    """Evaluates letters as Python would."""
    sizes = DIFFERENT.sizes | {"T": T, "S": S, "C": 64}
    return tuple(int(eval(letter, {}, sizes)) for letter in letters)


@pytest.mark.parametrize("all_positions", [False, True])
def test_every_tensor_shows_letters_that_are_its_sizes(all_positions):
    transformer = different_transformer()
    context = InferenceContext(DIFFERENT, 64)
    for start_pos, T in ((0, 22), (22, 4), (26, 1)):
        with recorded(DIFFERENT) as events:
            transformer.forward(context, PROMPT[:T], start_pos, all_positions)
        for event, x in ((e, x) for e in events for x in (*e.inputs, *e.outputs)):
            if x.name != "rotations" or x.shape[0] < 64:  # not all that the context has
                assert numbers(x.letters, T, start_pos + T) == x.shape, (event.op, x)
            assert x.name


def test_every_step_of_the_registry_is_taken_by_a_run_and_every_weight_has_letters(
    tmp_path, model
):
    families = [load_model(write_family(tmp_path / family, family)) for family in CONFIGS]
    args = replace(model.args, dtype=ml.float32, feed_forward_dtype=ml.bfloat16)
    experts = load_model(write_family(tmp_path / "float32", "qwen3_moe", ml.float32))
    args_of_experts = replace(experts.args, feed_forward_dtype=ml.bfloat16)
    in_bfloat16 = {
        name: weight.to(ml.bfloat16) if "experts" in name else weight
        for name, weight in experts.tensors.items()
    }
    runs = [
        (args_of_experts, type(experts.transformer)(args_of_experts, in_bfloat16)),
        (DIFFERENT, different_transformer()),
        (args, LlamaTransformer(args, model.tensors)),
        *((m.args, m.transformer) for m in families),
    ]
    seen = []
    for args, transformer in runs:
        for all_positions in (False, True):
            with recorded(args) as events:
                transformer.forward(InferenceContext(args, 64), PROMPT, 0, all_positions)
            seen += events
    with recorded(model.args) as events:
        list(InferenceEngine(model, 64).generate([1, 2, 3], 1, GREEDY))
    read = [x for e in seen for x in e.inputs if x.name.endswith(("weight", "bias"))]
    assert all(x.letters for x in read)
    taken = {
        (e.stage, e.op, x.name, x.letters) for e in (*seen, *events) for x in e.outputs
    }
    listed = {
        (s.number, t.op, t.name, t.letters) for s in STAGES.values() for t in s.steps
    }
    fused = {(14, "attention", "output", ("T", "H", "h"))}  # a trace is always eager
    assert taken - {(5, "layer", "x", ("T", "D"))} == listed - fused


def test_events_carry_layer_position_duration_and_arguments():
    events = pass_events([1, 2, 3, 4])
    assert {e.position for e in events} == {22}
    assert {e.layer for e in events if e.stage in range(5, 19)} == {0, 1}
    assert {e.layer for e in events if e.stage not in range(5, 19)} == {None}
    assert all(e.seconds is None for e in events if e.op == "mark")
    untimed = [e.outputs[0].name for e in events if e.seconds is None and e.op != "mark"]
    assert untimed == ["xk", "xv", "cache_v", "values", "up"] * 2
    assert {e.step for e in events} == {None}  # no loop ran it
    assert 0 <= events[0].start < events[-1].start
    layers = [e for e in events if e.op == "layer"]
    for layer in layers:
        ops = [e for e in events if e.layer == layer.layer and e.op != "layer"]
        assert layer.seconds == pytest.approx(sum(e.seconds or 0.0 for e in ops))
        assert layer.bytes == sum(e.bytes for e in ops)
        assert layer.operations == sum(e.operations for e in ops)
    (scaled, _) = (e for e in events if e.op == "multiply")
    assert scaled.details == {"b": 1 / 10**0.5}
    (norm, *_) = (e for e in events if e.op == "rms_norm")
    assert [x.name for x in norm.inputs] == ["x", "layers.0.attention_norm.weight"]
    assert norm.details == {"eps": 1e-5, "dtype": "bfloat16"}


def test_an_event_carries_the_bytes_and_the_operations_of_its_op():
    args = DIFFERENT
    T = 22
    events = pass_events()
    work = {
        e.outputs[0].name: (e.bytes, e.operations)
        for e in events
        if e.layer == 0 and e.outputs
    }
    D = args.dim
    F = args.ffn_dim
    H = args.n_heads
    h = args.head_dim
    K = args.n_kv_heads
    assert work["gate"] == (2 * (T * D + F * D + T * F), 2 * T * D * F)
    assert work["hidden"] == (2 * 3 * T * F, 4 * T * F)
    assert work["cache_k"] == (2 * 2 * T * K * h, 0)
    assert work["attention"][1] == 2 * T * H * h * D
    rows, *_ = (e for e in events if e.op == "get_rows")
    assert rows.bytes == 2 * 2 * T * D + 4 * T  # of the table only the rows
    views = [e for e in events if e.op in ("reshape", "transpose", "slice") and e.bytes]
    # The heads become a row.
    assert [e.outputs[0].name for e in views] == [
        "output",
        "output",
    ]


def test_a_tensor_keeps_its_id_until_it_is_made_anew(model):
    with recorded(model.args) as events:
        list(InferenceEngine(model, 64).generate([1, 2, 3], 2, GREEDY))
    made: dict[tuple[str, tuple[int, ...]], int] = {}
    weights: dict[str, set[int]] = {}
    caches: dict[tuple[str, int | None], set[int]] = {}
    for event in events:
        for x in event.inputs:
            if (x.name, x.shape) in made and x.name != "tokens":  # a slice of them
                assert made[x.name, x.shape] == x.id, (event.op, x)
            if x.name.endswith(".weight"):
                weights.setdefault(x.name, set()).add(x.id)
        if event.op != "layer":
            made |= {(x.name, x.shape): x.id for x in event.outputs}
        for x in event.outputs:
            if x.name.startswith("cache_"):
                caches.setdefault((x.name, event.layer), set()).add(x.id)
    assert {len(ids) for ids in (*weights.values(), *caches.values())} == {1}
    assert len({n for ids in caches.values() for n in ids}) == 2 * model.args.n_layers


def test_a_cache_is_shown_as_its_buffer_with_the_slots_that_are_written():
    events = pass_events([1, 2], length=50)
    first, *others = (e for e in events if e.stage == 11 and e.layer == 0 and e.outputs)
    names = [x.name for e in (first, *others) for x in e.inputs]
    assert names == ["xk", "xv", "cache_k", "cache_v"]
    (buffer,) = first.outputs
    # 50 in groups of 16.
    assert (buffer.letters, buffer.shape) == (
        ("C", "K", "h"),
        (64, 3, 10),
    )
    assert others[1].inputs[0] == buffer
    assert first.details == {"start_pos": 22, "written": "22:24", "filled": "0:24"}


def test_elements_are_copied_where_they_are_asked_for():
    def wants(stage: int, layer: int | None, _step: int | None) -> bool:
        return (stage, layer) in ((13, 0), (4, None))

    events = pass_events(values=wants)
    found = {
        (e.stage, e.layer) for e in events for x in e.outputs if x.values is not None
    }
    assert found == {(13, 0), (4, None)}
    scores = [
        x.values for e in events if (e.stage, e.layer) == (13, 0) for x in e.outputs
    ][-1]
    np.testing.assert_allclose(scores.sum(axis=-1), 1, atol=0.02)
    assert not np.triu(scores, 1).any()


def test_symbols_are_named_and_parts_of_them_wait():
    assert symbols("a é 🙂🙂 €→") == ["U+1F642 SLIGHTLY SMILING FACE"]
    parts = ["U+1F44D THUMBS UP SIGN", "U+1F3FD EMOJI MODIFIER FITZPATRICK TYPE-4"]
    assert symbols("👍🏽") == parts
    texts = {1: "'\\xf0\\x9f'", 2: "'\\x99'"}
    with recorded(DIFFERENT, text_of=texts.get) as events:
        trace.mark(21, details={"token": 1, "text": "", "stop_reason": None})
        trace.mark(21, details={"token": 2, "text": "🙂", "stop_reason": None})
    found = [(e.details["waits"], len(e.details["symbols"])) for e in events]
    assert found == [(True, 0), (False, 1)]


def test_only_what_is_wanted_is_written_and_names_stay_right():
    events = pass_events(wants=lambda stage, layer, _step: layer is None and stage == 19)
    assert [(e.stage, e.op) for e in events] == [
        (19, "mark"), (19, "slice"), (19, "rms_norm"), (19, "linear_transformation"),
    ]  # fmt: skip
    assert events[1].inputs[0].name == "x"


def test_statistics_are_those_of_the_elements_and_come_only_on_request():
    assert not [x for e in pass_events() for x in (*e.inputs, *e.outputs) if x.statistics]
    with recorded(DIFFERENT, statistics=True) as events:
        context = InferenceContext(DIFFERENT, 64)
        values = (
            different_transformer().forward(context, PROMPT).numpy().astype(float).ravel()
        )
    found = events[-1].outputs[0].statistics
    assert (found["min"], found["max"]) == (values.min(), values.max())
    assert found["mean"] == pytest.approx(values.mean())
    assert found["rms"] == pytest.approx(np.sqrt((values**2).mean()))
    assert found["first"] == values[:3].tolist()
    assert found["last"] == values[-3:].tolist()
    assert statistics(np.array([3 + 4j], dtype=np.complex64))["first"] == [3.0, 4.0]
    assert statistics(np.zeros((0, 3))) is None


@pytest.mark.parametrize(("position", "head"), [(0, 0), (21, 7), (24, 11), (None, 4)])
def test_the_row_of_a_position_has_its_elements_wherever_the_position_is(position, head):
    passes = {0: pass_events, 22: lambda **o: pass_events(more=[1, 2, 3, 4], **o)}
    found = set()
    for start, run in passes.items():
        events = run(row=RowChoice(position, head), values=lambda *_where: True)
        T = 4 if start else 22
        chosen = start + T - 1 if position is None else position
        for event in events:
            for x in event.outputs if event.op != "layer" else ():
                is_new = start <= chosen < start + T
                is_last = chosen == start + T - 1
                has_row = is_new and (is_last or x.letters[0] != "1")
                if "S" in x.letters and "T" not in x.letters:
                    has_row = chosen < start + T
                assert (x.row is not None) == has_row, (event.op, x.letters, start)
                if x.row is None:
                    continue
                found.add((event.stage, event.op, x.letters))
                sizes = {"T": chosen - start, "S": chosen, "C": chosen - start}
                sizes |= {"H": head, "K": head // 4, "1": 0}
                index = x.row["index"]
                assert index.count(None) == 1
                places = [
                    slice(None) if at is None else sizes[letter]
                    for letter, at in zip(x.letters, index, strict=True)
                ]
                row = x.values[tuple(places)]
                assert x.row["length"] == row.size
                assert index[0] == (chosen if "C" in x.letters else index[0])
                shown = [float(n) for n in np.ravel(list(x.row["first"]))]
                pairs = row.view(np.float32) if np.iscomplexobj(row) else row
                assert shown == pairs[: len(shown)].tolist()
                assert len(shown) == min(6, pairs.size)
    last = {19} if position in (21, None) else set()
    assert {stage for stage, _, _ in found} == {*range(4, 19)} - {5, 7} | last


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A model with a window of 8 positions in the layers 1 to 3, and sinks."""
    return load_model(write_family(tmp_path_factory.mktemp("model"), "granite_swa"))


def test_a_layer_with_a_window_has_w_positions_beyond_it(windowed: Model) -> None:
    ids = [number % 131 for number in range(270)]
    context = InferenceContext(windowed.args, 300)
    windowed.transformer.forward(context, ids)
    wants = {"row": RowChoice(268, 7), "values": lambda *_where: True}
    with recorded(windowed.args, **wants) as events:
        windowed.transformer.forward(context, ids[:2], 270)
    sizes = windowed.args.sizes | {"T": 2, "S": 272, "C": 304, "W": 272 - 256}
    for layer, letter in ((0, "S"), (1, "W")):
        of_layer = [e for e in events if e.layer == layer and e.stage in (11, 12, 13)]
        (mark,) = (e for e in of_layer if e.op == "mark" and e.stage == 13)
        assert mark.details["window"] == (8 if layer else None)
        assert mark.details["sinks"] is True
        assert mark.details.get("W") == (16 if layer else None)
        results = {x.name: x for e in of_layer for x in e.outputs}
        assert results["keys"].letters == ("H", "h", letter)
        assert results["values"].letters == ("H", letter, "h")
        assert results["weights"].letters == ("H", "T", letter)
        for event, x in ((e, x) for e in of_layer for x in (*e.inputs, *e.outputs)):
            assert x.name, event.op
            assert fits(x.letters, x.shape, sizes), (event.op, x.name)
        (softmax,) = (e for e in of_layer if e.op == "softmax")
        assert softmax.inputs[1].name == f"layers.{layer}.attention.sinks.weight"
        row = results["values"].row
        at = 268 if letter == "S" else 268 - 256
        assert row["index"] == [7, at, None]
        assert row["first"] == results["values"].values[7, at, :6].astype(float).tolist()
    too_early = RowChoice(255, 7)
    with recorded(windowed.args, row=too_early) as events:
        windowed.transformer.forward(context, [1], 271)
    rows = [x.row for e in events if e.layer == 1 for x in e.outputs if "W" in x.letters]
    assert rows
    assert not any(rows)


def test_no_row_is_kept_unless_one_is_chosen():
    assert not [x for event in pass_events() for x in event.outputs if x.row]


def test_a_trace_shows_eager_attention_and_changes_no_bit_of_it(model):
    def answer() -> list[int]:
        engine = InferenceEngine(model, 64)
        steps = engine.generate(token_ids(BYTES_VOCAB, 9), 8, SamplingArgs(seed=3))
        return [step.token_id for step in steps]

    def logits(attention: str) -> bytes:
        context = InferenceContext(DIFFERENT, 64, attention)
        return different_transformer().forward(context, PROMPT).numpy().tobytes()

    tokens = answer()
    values = logits("fused")
    assert logits("eager") == values
    with recorded(model.args, statistics=True):
        assert (answer(), logits("eager"), logits("fused")) == (tokens, values, values)
    assert (answer(), logits("eager"), logits("fused")) == (tokens, values, values)


def test_an_interrupted_pass_leaves_nothing_behind(monkeypatch):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    transformer = different_transformer()
    context = InferenceContext(DIFFERENT, 64)
    with recorded(DIFFERENT) as events:
        with monkeypatch.context() as patch:
            patch.setattr(ml, "swiglu", interrupt)
            with pytest.raises(KeyboardInterrupt):
                transformer.forward(context, PROMPT)
        events.clear()
        transformer.forward(context, PROMPT)
    again, whole = (
        [(e.stage, e.op, x.name, x.shape) for e in found for x in e.outputs]
        for found in (events, pass_events())
    )
    assert again == whole


def test_off_the_trace_costs_one_look_at_a_variable_per_stage_and_nothing_per_op():
    transformer = different_transformer()
    context = InferenceContext(DIFFERENT, 64)
    with recorded(DIFFERENT):
        transformer.forward(context, PROMPT)
    assert not trace.is_on()
    calls = 0

    def profile(frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call" and "src/trace" in frame.f_code.co_filename

    sys.setprofile(profile)
    try:
        transformer.forward(context, [5], 22)
    finally:
        sys.setprofile(None)
    # Stages 5 to 11 and 15 to 18 of each block; and whether attention is to be eager.
    marks = 2 + 11 * DIFFERENT.n_layers
    questions = 1
    assert calls == marks + questions


def test_what_fits_no_step_has_no_letters_and_what_is_outside_of_a_stage_no_event():
    trace.mark(8)
    with recorded(DIFFERENT) as events:
        ml.zeros((2, 3), ml.float32).reshape(3, 2)
        assert events == []
        trace.mark(8, position=0, T=22)
        x = ml.zeros((2, 3), ml.float32).with_name("mine")
        assert ml.add(x, x).name == ""
        assert x.reshape(3, 2).name == "mine"
    trace.mark(8, layer=3, position=1, T=2)
    assert [(e.op, e.outputs[0].name, e.outputs[0].letters) for e in events[1:]] == [
        ("zeros", "", ()), ("add", "", ()), ("reshape", "mine", ()),
    ]  # fmt: skip
