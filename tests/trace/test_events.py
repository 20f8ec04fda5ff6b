import importlib
import inspect
import re
from dataclasses import replace
from functools import reduce

import pytest

from src.checkpoint.names import stack_name
from src.ml.op import OPS
from src.model.families import FAMILIES
from src.trace.events import STAGES, fits
from tests.trace.recording import DIFFERENT, source_files
from tools.pages import ROOT, anchor, headings

# The names that docs, diagrams and code go by.
NAMES = (
    "tokenization",
    "tokens tensor",
    "loop over the sequence",
    "input tensor (embedding), rotations, mask",
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
    # A class that replaces a method of llama.py marks the stages of the method again.
    files = [
        path
        for path in source_files()
        if path.parent.name != "families"
        and path.name not in ("experts.py", "windows.py")
    ]
    text = "".join(path.read_text(encoding="utf-8") for path in files)
    marked = [
        int(number)
        for number in re.findall(r"^ +mark\(\s*(\d+)", text, flags=re.MULTILINE)
    ]
    assert sorted(marked) == [*STAGES]


MATRICES = ("wq", "wk", "wv", "wo", "w1", "w2", "w3")


@pytest.mark.parametrize("family", FAMILIES.values())
def test_every_weight_has_letters_and_they_are_its_sizes(family):
    args = replace(
        DIFFERENT,
        biases=MATRICES,
        layer_rows=family.layer_rows,
        n_experts=7,
        n_active_experts=2,
    )
    stacks = {stack_name(row): row for row in args.tensor_rows if row.expert == 0}
    shapes = args.tensor_shapes
    shapes |= {name: (7, *shapes[row.name]) for name, row in stacks.items()}
    assert args.tensor_letters.keys() == shapes.keys()
    assert len([name for name in shapes if name.endswith(".bias")]) >= len(MATRICES)
    for name, letters in args.tensor_letters.items():
        assert fits(letters, shapes[name], args.sizes), name


def test_letters_that_are_not_the_sizes_of_a_tensor_do_not_fit():
    shapes = DIFFERENT.tensor_shapes
    wrong = {("F", "D"), ("D", "H*h"), ("D",)}
    assert not [x for x in wrong if fits(x, shapes["output.weight"], DIFFERENT.sizes)]
