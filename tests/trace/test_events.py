import importlib
import inspect
import re
from functools import reduce

import pytest

from src.checkpoint.names import rows_of
from src.ml.op import OPS
from src.model.families import FAMILIES
from src.trace.events import _READ_LETTERS, STAGES, fits, read_letters
from tests.trace.recording import DIFFERENT, source_files
from tools.pages import ROOT, anchor, headings

# The names that docs, diagrams and code go by.
NAMES = (
    "tokenization",
    "tokens tensor",
    "loop over the sequence",
    "input tensor (embedding), frequencies, mask",
    "each transformer block",
    "attention pre-norm",
    "attention",
    "xq, xk, xv",
    "reshape to heads",
    "rotary embedding",
    "KV cache update",
    "repeat heads and transposes",
    "scores, mask, softmax",
    "attention output",
    "attention residual",
    "feed-forward pre-norm",
    "feed-forward",
    "feed-forward residual",
    "output norm and logits",
    "sampling",
    "token to text, stop check",
)


def test_the_registry_holds_the_21_stages_in_run_order():
    assert (
        [stage.number for stage in STAGES.values()] == list(STAGES) == list(range(1, 22))
    )
    assert tuple(stage.name for stage in STAGES.values()) == NAMES


@pytest.mark.parametrize("stage", STAGES.values(), ids=lambda stage: stage.name)
def test_a_stage_leads_to_its_line_of_code_its_section_its_diagram_and_its_ops(stage):
    module = importlib.import_module(f"src.{stage.module}")
    function = reduce(getattr, stage.function.split("."), module)
    lines, first = inspect.getsourcelines(inspect.unwrap(function))
    marks = [n for n, text in enumerate(lines, first) if f"mark({stage.number}" in text]
    line = marks[0] if marks else first
    assert stage.code == f"src/{stage.module.replace('.', '/')}.py:{line}"
    page, _, place = stage.chapter.partition("#")
    found = [text for _, text, _ in headings((ROOT / page).read_text(encoding="utf-8"))]
    assert found.count(stage.heading) == 1, f"{page}: {stage.heading}"
    assert anchor(stage.heading) == place
    assert (ROOT / stage.diagram).is_file()
    assert {step.op for step in stage.steps} <= {*OPS, "mark"}


def test_every_stage_is_marked_at_one_place():
    # A family that replaces a method marks the stages of the method again.
    files = [path for path in source_files() if path.parent.name != "families"]
    text = "".join(path.read_text(encoding="utf-8") for path in files)
    marked = [
        int(number)
        for number in re.findall(r"^ +mark\(\s*(\d+)", text, flags=re.MULTILINE)
    ]
    assert sorted(marked) == [*STAGES]


MATRICES = ("wq", "wk", "wv", "wo", "w1", "w2", "w3")


def test_every_weight_has_letters_and_they_are_its_sizes():
    shapes = DIFFERENT.tensor_shapes
    rows = rows_of(1, biases=MATRICES)
    biases = [row.name for row in rows if row.name.endswith(".bias")]
    assert biases
    shapes |= {name: shapes[f"{name[:-4]}weight"][:1] for name in biases}
    for name, shape in shapes.items():
        assert fits(read_letters(name), shape, DIFFERENT.sizes)
    assert read_letters("layers.0.norm.weight") == ("D",)


def test_the_letters_of_weights_are_the_sizes_of_the_table_of_names():
    letters = {"Hh": "H*h", "Kh": "K*h"}
    seen = set()
    for family in FAMILIES.values():
        for row in rows_of(2, family.layer_rows, MATRICES):
            is_norm_of_all = "_norm" in row.name and row.sizes in (("Hh",), ("Kh",))
            name = f"{row.name} of all" if is_norm_of_all else row.name
            expected = tuple(letters.get(size, size) for size in row.sizes)
            assert read_letters(name) == expected, name
            seen.add(name.removeprefix("layers.0.").removeprefix("layers.1."))
    weights = {name for name in _READ_LETTERS if ".weight" in name}
    assert weights <= seen


def test_a_tensor_that_is_not_read_has_no_letters():
    assert read_letters("rope.freqs") is None
