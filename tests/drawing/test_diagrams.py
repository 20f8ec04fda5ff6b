import dataclasses
import math
import re
from xml.etree import ElementTree

import pytest

from src.drawing import MODEL, TracedRun, draw_all
from src.drawing.around import draw_loop
from src.drawing.canvas import Box, Canvas
from src.drawing.frame import Sheet
from src.trace.events import STAGES
from src.trace.records import Event
from tests.drawing.overlaps import NAMESPACE, faults
from tests.drawing.runs import byte_run, family_run, resized
from tests.model.families import CONFIGS
from tools.runs import SIZES_8B, bundled_events, bundled_model, current_diagrams

WIDE = 'a\nb "c" <d> & \x1b[31m \u202e \u6771\u4eac 🙂🙂'
NAMES = [*(f"stage-{number:02}.svg" for number in STAGES), MODEL]
every_diagram = pytest.mark.parametrize("name", NAMES)


def bundled_run() -> TracedRun:
    return TracedRun("m", bundled_model().args.sizes, bundled_events())


@pytest.fixture(scope="module")
def byte_diagrams(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return draw_all(byte_run(tmp_path_factory.mktemp("bytes"), WIDE, 12))


@pytest.fixture(scope="module")
def large_diagrams() -> dict[str, str]:
    return draw_all(resized(bundled_run(), SIZES_8B | {"T": 512, "S": 131072}))


def texts(svg: str) -> list[str]:
    return [
        text.text or "" for text in ElementTree.fromstring(svg).iter(f"{NAMESPACE}text")
    ]


@pytest.mark.parametrize("diagrams", ["committed", "large", "wide"])
@every_diagram
def test_no_text_and_no_box_overlaps_another(
    name, diagrams, large_diagrams, byte_diagrams
):
    """Nor with the sizes of a large model and a long prompt, nor with characters of all
    kinds.
    """
    drawn = {
        "committed": current_diagrams(),
        "large": large_diagrams,
        "wide": byte_diagrams,
    }
    svg = drawn[diagrams][name]
    assert faults(svg) == []
    assert all(text.isprintable() for text in texts(svg))


@pytest.mark.parametrize("family", CONFIGS)
def test_the_families_next_to_llama_are_drawn_without_overlaps(tmp_path, family):
    drawn = draw_all(family_run(tmp_path, family))
    assert sorted(drawn) == sorted(current_diagrams()) == sorted(NAMES)
    assert all(faults(svg) == [] for svg in drawn.values())
    stage, said = {
        "qwen2": (8, {"wq [H*h, D]", "wq.bias [H*h]", "wk.bias [K*h]", "wv.bias [K*h]"}),
        "olmo2": (15, {"rms_norm"}), "granite": (14, {"multiply"}),
    }.get(family, (15, set()))  # fmt: skip
    assert said <= set(texts(drawn[f"stage-{stage:02}.svg"]))


@pytest.mark.parametrize(
    "number", [n for n, stage in STAGES.items() if stage.steps and n != 2]
)
def test_a_diagram_shows_every_tensor_of_its_stage_in_letters_and_in_numbers(number):
    shown = texts(current_diagrams()[f"stage-{number:02}.svg"])
    for event in bundled_run().first(number):
        for x in event.outputs:
            assert f"{x.name} [{', '.join(x.letters)}]" in shown
            assert f"{list(x.shape)} {x.dtype}" in shown
    if number == 13:  # and the numbers of the 8B beside
        assert {"8B [32, 128, 22]", "8B [32, 22, 22]"} <= set(shown)


@every_diagram
def test_every_class_has_a_colour_for_light_and_another_for_dark(name):
    svg = current_diagrams()[name]
    light, dark = svg.split("@media (prefers-color-scheme: dark) {")
    used = set(re.findall(r'class="([\w ]+)"', svg))
    for kind in {part for kinds in used for part in kinds.split()} - {
        "mono",
        "sans",
        "bold",
    }:
        rules = [
            re.findall(
                rf"^ *\.{kind} {{ (.*) }}$", half.partition("</style>")[0], re.MULTILINE
            )
            for half in (light, dark)
        ]
        assert len(rules[0]) == len(rules[1]) == 1, kind
        assert rules[0] != rules[1] or kind == "white"


def test_the_text_of_the_prompt_and_of_its_tokens_is_shown_escaped(byte_diagrams):
    shown = texts(byte_diagrams["stage-01.svg"])
    assert repr(WIDE)[1:-1] in " ".join(shown)
    assert {"'\\n'", "'<'", "' '", "'\\xe6'"} <= set(shown)
    assert "&lt;d&gt;" in byte_diagrams["stage-01.svg"]


def test_the_loop_shows_what_each_pass_reads_anew(byte_diagrams):
    shown = texts(byte_diagrams["stage-03.svg"])
    passes = [text for text in shown if text.startswith("T = ")]
    first = int(passes[0].split("S = ")[1])
    assert passes[0] == f"T = {first}, S = {first}"
    assert passes[1:] == [f"T = 1, S = {first + more}" for more in range(1, len(passes))]
    assert f"{first} cached" in shown


def test_an_angle_is_the_position_times_the_radians_of_its_pair():
    shown = " ".join(texts(current_diagrams()["stage-10.svg"]))
    found = re.findall(
        r"pair (\d+): (\S+) rad per position at (\d+): (\S+) degrees", shown
    )
    args = bundled_model().args
    assert [int(pair) for pair, *_ in found] == [
        0,
        args.head_dim // 8,
        args.head_dim // 2 - 1,
    ]
    assert float(found[0][1]) == 1.0
    for _pair, radians, position, degrees in found:
        turned = math.degrees(float(radians) * int(position)) - float(degrees)
        assert abs(math.remainder(turned, 360)) < 0.1


def test_the_pictures_name_the_weight_and_the_gates_of_the_last_token():
    run = bundled_run()
    diagrams = current_diagrams()
    weights = run.values(13, "weights")
    gates = run.values(17, "gate")[-1]
    shown = " ".join(texts(diagrams["stage-13.svg"]))
    found = re.search(
        (
            r"weights of head (\d+) .*\(position (\d+)\) gives (\S+) of 1 to "
            r".*\(position (\d+)\)"
        ),
        shown,
    )
    head, last, weight, seen = found.groups()
    assert int(last) == run.new_tokens - 1 == weights.shape[1] - 1
    assert f"{weights[int(head), int(last), int(seen)]:.3f}" == weight
    assert weights[:, -1, 1:-1].max() == weights[int(head), -1, int(seen)]
    # Of one line or two.
    _, dots = " ".join(texts(diagrams["stage-17.svg"])).split("Dots: ")
    numbers = [float(number) for number in re.findall(r"-?\d+\.\d+", dots)][:5]
    assert numbers == sorted(numbers)
    assert (numbers[0], numbers[-1]) == (round(gates.min(), 2), round(gates.max(), 2))


@pytest.mark.parametrize(
    ("family", "sentence", "grey_parts"),
    [
        # The window of 7 positions hides earlier tokens from 12 of 19 tokens.
        ("gemma3_text", "The window has 7 positions.", 18 + 12),
        ("granite_swa", "The first column is the sink,", 18),
    ],
)
def test_the_picture_of_the_weights_shows_the_window_and_the_sink_of_the_first_layer(
    tmp_path, family, sentence, grey_parts
):
    run = family_run(tmp_path, family, "The quick brown fox")
    svg = draw_all(run)["stage-13.svg"]
    assert sentence in " ".join(texts(svg))
    assert faults(svg) == []
    strip = len(STAGES) - 1  # the other stages are grey too
    assert svg.count('class="dim"') == strip + grey_parts


def test_g_is_explained_where_heads_are_repeated_and_no_letter_is_cut_from_its_meaning():
    assert any(
        "G query heads per key/value head 3 (4)" in t for t in legends("stage-12.svg")
    )
    for name in NAMES:
        for line in legends(name):
            assert all(
                re.fullmatch(r"\w .* \d+ \(\d+\)", part) for part in line.split(" · ")
            )


def legends(name: str) -> list[str]:
    """Returns the lines that say what letters stand for: those after `Numbers:`, at the
    end.
    """
    shown = texts(current_diagrams()[name])
    (at,) = (
        n
        for n, text in enumerate(shown)
        if text.startswith("Numbers: the bundled model.")
    )
    return [line.removesuffix(" ·") for line in shown[at + 1 :]]


def test_a_candidate_has_its_probability_before_and_after_the_steps(tmp_path):
    run = byte_run(tmp_path, "x", 2)
    shown = texts(draw_all(run)["stage-20.svg"])
    for details in (event.details for event in run.marks(20)):
        candidates = details["choice"]["candidates"]
        for candidate, logit in zip(candidates, details["logits"], strict=True):
            first, *_, last = candidate["probabilities"]
            assert f"{first:.4f} {last:.4f} {logit:.2f}" in shown


def test_a_greedy_choice_is_drawn_without_a_draw():
    run = bundled_run()
    (event,) = [e for e in run.events if e.stage == 20][:1]
    shown = " ".join(texts(current_diagrams()["stage-20.svg"]))
    assert "one draw: " in shown
    event.details["sampling"].update(temperature=0.0)
    try:
        shown = " ".join(texts(draw_all(run)["stage-20.svg"]))
    finally:
        event.details["sampling"].update(temperature=0.6)
    assert "the largest: " in shown
    assert "top_k = 50 (off)" in shown


def test_of_a_long_answer_the_first_pass_is_kept_and_the_loop_around_the_others(tmp_path):
    events = byte_run(tmp_path, "x", 6).events
    loop = [number for number, event in enumerate(events) if event.stage == 3]
    assert len(loop) == 6
    assert {event.stage for event in events[loop[1] :]} == {3, 20, 21}
    assert {event.layer for event in events} == {None, 0}
    assert {event.stage for event in events[: loop[1]]} == set(range(1, 22))


def test_tokens_belong_to_the_pass_that_they_were_chosen_after():
    run = bundled_run()
    loop = run.marks(3)[0]
    sampling = run.marks(20)[0]

    def event(mark: Event, **details: int) -> Event:
        return dataclasses.replace(mark, details={**mark.details, **details})

    events = [
        event(loop, T=5, S=5), event(loop, T=4, S=9), event(sampling, token=7),
        event(loop, T=1, S=10), event(sampling, token=8),
    ]  # fmt: skip
    in_parts = dataclasses.replace(run, events=events)
    assert [(mark.details["S"], token) for mark, token in in_parts.passes()] == [
        (5, None), (9, 7), (10, 8),
    ]  # fmt: skip
    sheet = Sheet(in_parts, 3)
    draw_loop(sheet, 0.0)
    assert "5 cached" in texts(sheet.svg("loop"))


def page(
    *, wide: float = 200, second: float = 300, line: float = 400, size: int = 14
) -> str:
    canvas = Canvas()
    canvas.rect(Box(30, 30, wide, 40), "op")
    canvas.text((40, 55), "twenty characters ..", size=size)
    canvas.rect(Box(second, 30, 100, 40), "op")
    canvas.arrow([(line, 20), (line, 90)])
    return canvas.svg("a page")


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"wide": 150}, "'twenty characters ..' crosses the edge of op at 30, 30"),
        ({"second": 220}, "op at 30, 30 overlaps op at 220, 30"),
        ({"second": 850}, "op at 850, 30 is not on the page"),
        (
            {"line": 100},
            "the line from (100.0, 20.0) to (100.0, 90.0) crosses 'twenty charact",
        ),
        ({"size": 11}, "text of size 11"),
    ],
)
def test_what_meets_is_a_fault(changed, fault):
    assert faults(page()) == []
    found = faults(page(**changed))
    assert any(line.startswith(fault) for line in found), found


def test_texts_that_lie_one_on_the_other_are_a_fault():
    canvas = Canvas()
    canvas.text((40, 55), "one")
    canvas.text((50, 60), "other")
    assert faults(canvas.svg("a page")) == ["'one' overlaps 'other'"]


@pytest.mark.parametrize("number", STAGES)
def test_a_strip_shows_the_stage_among_all_stages(number):
    svg = draw_all(bundled_run())[f"stage-{number:02}.svg"]
    page = ElementTree.fromstring(svg)
    strip = [x for x in page.iter(f"{NAMESPACE}rect") if x.attrib["height"] == "22"]
    kinds = [x.attrib["class"] for x in strip[: len(STAGES)]]
    assert [i for i, kind in enumerate(kinds, 1) if kind == "badge"] == [number]
    held = {5: range(6, 19), 7: range(8, 15)}.get(number, ())
    assert [i for i, kind in enumerate(kinds, 1) if kind == "stage"] == [*held]
    assert "each of 4 layers" in texts(svg)


def test_diagram_8_shows_values_of_the_run():
    run = bundled_run()
    token = run.new_tokens - 1
    lines = texts(draw_all(run)["stage-08.svg"])
    for stage, name in ((6, "normed"), (8, "xq"), (8, "xk"), (8, "xv")):
        values = run.values(stage, name)[token]
        [line] = [x for x in lines if x.startswith(f"{name}[{token}, :] = ")]
        assert f"= {values[0]:.4g}, {values[1]:.4g}, " in line
        assert f"({values.size} values)" in line


def test_diagram_10_shows_a_pair_before_and_after_its_rotation():
    run = bundled_run()
    lines = texts(draw_all(run)["stage-10.svg"])
    before = run.values(8, "xq")[-1]
    after = run.values(10, "xq")[-1, 0]
    pairs = [
        re.findall(r"\(([-.\d]+), ([-.\d]+)\)", x)
        for x in lines
        if x[:6] in ("before", "after ")
    ]
    shown = [[float(x) for x in pair[0]] for pair in pairs]
    assert len(shown) == 6
    for number, pair in enumerate((0, 4, 15)):
        place = slice(2 * pair, 2 * pair + 2)
        assert shown[2 * number] == pytest.approx(before[place].tolist(), abs=0.01)
        assert shown[2 * number + 1] == pytest.approx(after[place].tolist(), abs=0.001)
