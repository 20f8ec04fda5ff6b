"""Interventions change the named part of a tensor, and nothing else."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from src import ml
from src.inference import BatchEngine, InferenceEngine, Request, SamplingArgs
from src.inference.errors import InferenceError
from src.ml import op as op_module
from src.model import (
    InferenceContext,
    Intervention,
    InterventionError,
    Model,
    intervene,
    load_model,
)
from src.model.places import PLACES
from tests.model.families import write_family
from tools.runs import recorded

PROMPT = list(range(40, 60))
NEXT = 7
# A place of which each form of attention has the result, outside of layer 0.
HEAD = "layers.1.attention.heads[2]"


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model()


def logits_of(
    model: Model, *interventions: Intervention, attention: str = "fused"
) -> list[bytes]:
    """Returns the logits of a prompt in two chunks and of a decode step."""
    context = InferenceContext(model.args, 64, attention)
    forward = model.transformer.forward
    found = []
    with intervene(model, *interventions):
        for start, ids in ((0, PROMPT[:12]), (12, PROMPT[12:]), (len(PROMPT), [NEXT])):
            rows = forward(context, ids, start, all_positions=True)
            found.append(rows.numpy().tobytes())
    return found


def addresses(model: Model) -> list[str]:
    """Returns an address of each place of the model, in its layer 1."""
    found = []
    for place in PLACES:
        layer = ", layer 1" if place.is_in_layer else ""
        address = place.path.replace("L.", "1.", 1)
        address = address or f"{place.result}[stage {place.stage}{layer}]"
        record = Intervention.record(model, address)
        try:
            logits_of(model, record)
            record.recorded  # noqa: B018 - raises if no op has the place
        except InterventionError:
            continue  # another family has the place
        found.append(address)
    return found


def test_an_intervention_that_changes_nothing_keeps_all_bits(model: Model) -> None:
    plain = logits_of(model)
    places = addresses(model)
    assert len(places) > 20
    for address in places:
        record = Intervention.record(model, address)
        assert logits_of(model, record) == plain
        same = (
            Intervention.scale(model, address, 1),
            Intervention.add(model, address, 0),
            Intervention.add(model, address, np.zeros_like(record.recorded)),
            Intervention.replace(model, address, record.recorded),
        )
        for intervention in same:
            assert logits_of(model, intervention) == plain, address
            assert intervention.rows >= len(PROMPT) + 1


@pytest.mark.parametrize(
    ("attention", "address", "ops"),
    [
        ("fused", "x[layer 2]", "add"),
        ("fused", "layers.1.attention.xq", "rotary_embedding rotary_embedding"),
        ("fused", HEAD, "write_cache attention reshape linear_transformation"),
        (
            "eager",
            HEAD,
            "write_cache read_cache "
            "matmul to transpose to transpose reshape linear_transformation",
        ),
    ],
)
def test_only_ops_of_the_stages_with_interventions_are_observed(
    model: Model,
    monkeypatch: pytest.MonkeyPatch,
    attention: str,
    address: str,
    ops: str,
) -> None:
    observed = list[str]()
    run_observed = op_module._run_observed

    def count(function: Any, *arguments: Any) -> Any:
        observed.append(function.__name__)
        return run_observed(function, *arguments)

    monkeypatch.setattr(op_module, "_run_observed", count)
    logits_of(model, Intervention.zero(model, address), attention=attention)
    assert observed == ops.split() * 3  # one layer of each pass
    observed.clear()
    logits_of(model)
    assert not observed


def test_a_change_has_the_same_bits_in_both_forms_of_attention(model: Model) -> None:
    plain = logits_of(model)
    for address in addresses(model):
        zero = Intervention.zero(model, address)
        changed = logits_of(model, zero)
        assert changed != plain, address
        assert logits_of(model, zero, attention="eager") == changed


def test_a_head_set_to_zero_equals_its_columns_of_wo_set_to_zero(model: Model) -> None:
    changed = logits_of(model, Intervention.zero(model, HEAD))
    attention = model.transformer.layers[1].attention
    plain = attention.wo
    columns = slice(2 * model.args.head_dim, 3 * model.args.head_dim)
    weights = plain.numpy().copy()
    weights[:, columns] = 0
    attention.wo = ml.Tensor.from_numpy(weights)
    try:
        assert logits_of(model) == changed
    finally:
        attention.wo = plain
    assert logits_of(model) != changed


def test_a_head_of_a_quantized_model_can_be_set_to_zero(tmp_path: Path) -> None:
    path = write_family(tmp_path / "m", "qwen3")
    for how in ("nf4", "int8"):
        quantized = load_model(path, quantize=how)
        context = InferenceContext(quantized.args, 8)
        zero = Intervention.zero(quantized, "layers.0.attention.heads[1]")
        record = Intervention.record(quantized, "layers.0.attention.heads[1]")
        with intervene(quantized, zero, record):
            quantized.transformer.forward(context, [1, 2, 3])
        assert not record.recorded.any()


def test_everything_of_another_run_gives_its_logits(model: Model) -> None:
    other = list(reversed(PROMPT))

    def run(ids: Sequence[int], *interventions: Intervention) -> bytes:
        context = InferenceContext(model.args, 64)
        with intervene(model, *interventions):
            return model.transformer.forward(context, ids).numpy().tobytes()

    for address in ("embedding", "x[layer 0]", "x[layer 2, stage 15]", "x[layer 3]"):
        record = Intervention.record(model, address)
        expected = run(other, record)
        patch = Intervention.replace(model, address, record.recorded)
        if address == "x[layer 2, stage 15]":
            # The cache of layer 2 is not patched, which has no effect on this pass.
            assert patch.rows == 0
        assert run(PROMPT, patch) == expected
        assert run(PROMPT) != expected


def test_a_part_is_selected_by_layer_head_and_position(model: Model) -> None:
    h = model.args.head_dim
    for address, changed_rows in (
        ("layers.1.attention.heads[2]@5", [5]),
        ("output[layer 1, head 2]@3:6", [3, 4, 5]),
        ("layers.1.attention.heads[2:4]@12:", list(range(12, 20))),
    ):
        plain = Intervention.record(model, "layers.1.attention.heads")
        after = Intervention.record(model, "layers.1.attention.heads")
        for intervention in (plain, Intervention.zero(model, address)):
            context = InferenceContext(model.args, 64)
            with intervene(
                model, intervention, *([] if intervention is plain else [after])
            ):
                model.transformer.forward(context, PROMPT)
        different = (plain.recorded != after.recorded).any(axis=2)
        heads = [2, 3] if ":4" in address else [2]
        assert np.argwhere(different).tolist() == [
            [r, n] for r in changed_rows for n in heads
        ]
        assert after.recorded[changed_rows[0], 2].tolist() == [0.0] * h


def test_a_weight_of_attention_is_selected_by_its_key(model: Model) -> None:
    address = "weights[layer 1, head 0, key 3]@8"
    record = Intervention.record(model, "layers.1.attention.weights")
    logits_of(model, Intervention.replace(model, address, 0.5), record)
    assert record.recorded.shape == (model.args.n_heads, 21, 21)
    assert record.recorded[0, 8, 3] == 0.5
    assert record.recorded[1, 8, 3] != 0.5


def test_added_vectors_and_factors_have_exact_results(model: Model) -> None:
    vector = np.linspace(-1, 1, model.args.dim, dtype=np.float32)
    before = Intervention.record(model, "x[layer 1]")
    logits_of(model, before)
    after = Intervention.record(model, "x[layer 1]")
    logits_of(model, Intervention.add(model, "x[layer 1]@4:", vector), after)
    expected = before.recorded.copy()
    expected[4:] += vector
    assert (after.recorded == expected).all()
    half = Intervention.scale(model, "x[layer 1]", 0.5)
    logits_of(model, half, after)
    assert (after.recorded == before.recorded * np.float32(0.5)).all()


def test_interventions_apply_in_order(model: Model) -> None:
    zero = Intervention.zero(model, "x[layer 1]")
    one = Intervention.add(model, "x[layer 1]", 1.0)
    record = Intervention.record(model, "x[layer 1]")
    logits_of(model, zero, one, record)
    assert (record.recorded == 1).all()


def requests_of(model: Model) -> list[Request]:
    """Returns 16 requests with different interventions and prompts."""
    vector = np.linspace(-1, 1, model.args.dim)
    every = [
        (),
        (Intervention.zero(model, HEAD),),
        (Intervention.zero(model, "layers.0.attention.heads[0]@3:"),),
        (Intervention.scale(model, "layers.2.feed_forward", 0.5),),
        (Intervention.add(model, "x[layer 1]", vector),),
        (Intervention.add(model, "logits[7]", 3.0),),
        (
            Intervention.zero(model, HEAD),
            Intervention.zero(model, "layers.2.feed_forward"),
        ),
        (Intervention.add(model, "embedding@0", 0.1),),
    ]
    # The same two interventions in both orders.
    twice = Intervention.scale(model, "x[layer 2]", 2)
    plus = Intervention.add(model, "x[layer 2]", vector)
    every[0:2] = [(twice, plus), (plus, twice)]
    # Places inside attention, which run in passes of their own.
    every[5:8] = [
        (Intervention.zero(model, "weights[layer 1, key 2]"), twice),
        (Intervention.scale(model, "layers.2.attention.scores", 0.5),),
        (
            Intervention.zero(model, "layers.1.attention.xq[1]"),
            Intervention.scale(model, "layers.1.attention.xk[0]", 0.5),
            Intervention.add(model, "layers.2.attention.xv", 0.1),
        ),
    ]
    sampling = SamplingArgs(temperature=0.8, seed=3)
    prompts = [PROMPT, [*PROMPT[5:], *range(100, 200)]]
    return [
        Request(
            prompt_ids=ids,
            max_new_tokens=8,
            sampling=sampling,
            candidates=3,
            interventions=changes,
        )
        for ids in prompts
        for changes in every
    ]


def test_sixteen_requests_in_a_batch_have_the_answers_they_have_alone(
    model: Model,
) -> None:
    requests = requests_of(model)
    engine = InferenceEngine(model, 256)
    # The candidates contain the probabilities of tokens, in full precision.
    alone = [[step.choice for step in engine.answer(request)] for request in requests]
    assert len({repr(answer) for answer in alone}) == len(requests)
    with BatchEngine(model, sequence_length=256, prompt_chunk=32) as batch:
        submitted = [batch.answer(request) for request in requests]
        assert [[step.choice for step in answer] for answer in submitted] == alone


def test_only_the_request_with_an_absent_tensor_ends(model: Model) -> None:
    absent = Intervention.zero(model, "xq_normed[layer 0, stage 9]")
    greedy = SamplingArgs(temperature=0.0)
    with BatchEngine(model, sequence_length=64) as batch:
        plain = batch.submit(PROMPT, 12, greedy)
        wrong = batch.submit(PROMPT, 12, greedy, interventions=(absent,))
        assert len(list(plain)) == 12
        with pytest.raises(InterventionError, match="no op produced it in this model"):
            list(wrong)
        assert len(list(batch.submit(PROMPT, 12, greedy))) == 12


def test_a_recorded_request_has_a_row_for_each_position(model: Model) -> None:
    engine = InferenceEngine(model, 64)
    for _ in range(2):  # a second request does not reuse the cache of the first one
        record = Intervention.record(model, "x[layer 1]")
        steps = list(
            engine.generate(
                PROMPT, 6, SamplingArgs(temperature=0.0), interventions=(record,)
            )
        )
        assert record.recorded.shape == (len(PROMPT) + len(steps) - 1, model.args.dim)


def test_interventions_and_cached_prefixes_do_not_mix(model: Model) -> None:
    engine = InferenceEngine(model, 64)

    def answer(*interventions: Intervention) -> tuple[list[int], int]:
        steps = list(
            engine.generate(
                PROMPT, 8, SamplingArgs(temperature=0.0), interventions=interventions
            )
        )
        assert steps[-1].stats is not None
        return [step.token_id for step in steps], steps[-1].stats.cached_tokens

    zero = Intervention.scale(model, "layers.0.attention.xv", -2.0)
    plain, _ = answer()
    changed, cached = answer(zero)
    assert changed != plain
    assert cached == 0
    assert answer(zero) == (changed, len(PROMPT) - 1)
    assert answer() == (plain, 0)


def refuses(rule: str, *arguments: object) -> None:
    with pytest.raises(InterventionError, match=f"^{re.escape('[intervene] ')}.*{rule}"):
        Intervention(*arguments)


def test_wrong_addresses_and_values_are_refused_on_one_line(model: Model) -> None:
    names = "name must be one of embedding, layers.L.attention_norm, .*: got "
    refuses(names, model, "layers.1.attention.head[2]", "scale", 1)
    refuses(names, model, "nothing", "scale", 1)
    refuses("layer must be from 0 to 3", model, "layers.4.x", "scale", 1)
    needs_layer = r"attention needs \[layer L\], with L from 0 to 3"
    refuses(needs_layer, model, "attention", "scale", 1)
    refuses(
        "head of .* must be from 0 to 5: got 6:7",
        model,
        "output[layer 0, head 6]",
        "scale",
        1,
    )
    refuses(
        "H of .* must be from 0 to 5", model, "layers.0.attention.heads[6]", "scale", 1
    )
    refuses(r"x \[T, D\] has no head", model, "x[layer 0, head 1]", "scale", 1)
    refuses("index of .* must be layer N, stage N", model, "x[floor 0]", "scale", 1)
    refuses("position of .* must be N or FIRST:END", model, "x[layer 0]@5:5", "scale", 1)
    refuses(
        r"must be \[192\] or \[T, 192\]: got \[5\]",
        model,
        "x[layer 0]",
        "add",
        np.ones(5),
    )
    refuses(
        r"must be \[32\] or \[T, 32\]: got \[6, 32, 1\]",
        model,
        HEAD,
        "replace",
        np.ones((6, 32, 1)),
    )
    refuses(
        "must be finite: 1 of 192 elements are not",
        model,
        "x[layer 0]",
        "add",
        np.array([np.nan] + [0.0] * 191),
    )
    refuses("must be a number: got", model, "x[layer 0]", "scale", np.ones(192))
    refuses("must be a number or an array: str", model, "x[layer 0]", "scale", "two")


def test_a_layer_with_a_window_has_its_keys_at_their_positions(tmp_path: Path) -> None:
    path = write_family(tmp_path / "m", "gemma3_text", max_position_embeddings=1024)
    windows = load_model(path)
    ids = [(7 * number) % 50 for number in range(300)]

    def run(*interventions: Intervention) -> list[bytes]:
        context = InferenceContext(windows.args, 400, "eager")
        found = []
        with intervene(windows, *interventions):
            for start, part in ((0, ids), (300, [5]), (301, [6])):
                rows = windows.transformer.forward(context, part, start)
                found.append(rows.numpy().tobytes())
        return found

    plain = run()
    for address in ("layers.0.attention.weights", "keys[layer 0]", "scores[layer 5]"):
        record = Intervention.record(windows, address)
        assert run(record) == plain
        assert 302 in record.recorded.shape[:2]
        assert run(Intervention.replace(windows, address, record.recorded)) == plain
        assert run(Intervention.scale(windows, address, 2)) != plain
    weights = Intervention.record(windows, "layers.0.attention.weights")
    run(weights)
    last = weights.recorded[:, -1]
    seen = np.flatnonzero(last.any(axis=0)).tolist()
    assert seen == list(range(302 - windows.args.windows[0], 302))


def test_a_trace_shows_changed_tensors_and_says_what_changed_them(model: Model) -> None:
    zero = Intervention.zero(model, HEAD)
    plain = logits_of(model, zero)
    with recorded(model.args, values=lambda *_where: True) as events:
        assert logits_of(model, zero) == plain
    changed = [event for event in events if "changed" in event.details]
    places = {(event.stage, event.layer, event.op) for event in changed}
    assert places == {(14, 1, "transpose")}
    for event in changed:
        assert event.details["changed"] == f"{HEAD}=0"
        values = event.outputs[0].values
        assert values is not None
        assert not values[:, 2].any()
        assert values[:, 1].any()


def test_requests_refuse_what_they_cannot_run(model: Model, tmp_path: Path) -> None:
    engine = InferenceEngine(model, 64)
    late = Intervention.zero(model, "x[layer 0]@64")
    with pytest.raises(InterventionError, match="must be below the context length 64"):
        engine.generate(PROMPT, 2, interventions=(late,))
    other = load_model(write_family(tmp_path / "m", "qwen3"))
    foreign = Intervention.zero(other, "x[layer 0]")
    with pytest.raises(InterventionError, match="must be Interventions in this model"):
        engine.generate(PROMPT, 2, interventions=(foreign,))
    with pytest.raises(InterventionError, match="must be Interventions in this model"):
        engine.generate(PROMPT, 2, interventions="x[layer 0]=0")
    absent = Intervention.zero(model, "xq_normed[layer 0, stage 9]")
    with pytest.raises(InterventionError, match="no op produced it"):
        list(engine.generate(PROMPT, 2, interventions=(absent,)))
    with pytest.raises(InterventionError, match="must have recorded a row"):
        Intervention.record(model, "x[layer 0]").recorded  # noqa: B018


def test_several_processes_refuse_places_inside_of_attention_in_a_batch(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("src.model.interventions.has_ranks", lambda _: True)
    inside = Intervention.zero(model, "layers.0.attention.weights")
    batch = BatchEngine(model, sequence_length=64)
    with batch, pytest.raises(InferenceError, match="if several processes run a batch"):
        batch.submit(PROMPT, 2, interventions=(inside,))
