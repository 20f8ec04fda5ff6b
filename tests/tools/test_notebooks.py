"""The sessions: a page, a program and a notebook with the same cells, all of which run."""

import json
import os
import re
import subprocess
import sys
from codeop import compile_command

import numpy as np
import pytest

from src import ml
from src.catalog import CatalogError, find_model
from src.model import ModelError, load_model
from src.model.recording import record_pass
from tools.examples import examples
from tools.notebooks import SESSIONS, Cell, cells_of, current_notebooks, notebook, program
from tools.pages import ROOT, name_of

NAMES = [*SESSIONS.values()]
every_session = pytest.mark.parametrize("name", NAMES)

PAGE = """# Title

<!-- run: slow -->
```python
from src import ml
ml.ones(2)
```

```text
Tensor
```

See [chapter 7](07-tensor.md), [code](../src/main.py) and [a page](https://example.org).

```text
not an output
```

```python
import src.ml
```
"""


def test_cells_are_the_examples_and_the_text_between_them_without_outputs():
    assert cells_of(PAGE) == [
        Cell(False, "# Title"),
        Cell(True, "from llama_bolts import ml\nml.ones(2)"),
        Cell(
            False,
            "See [chapter 7](../docs/07-tensor.md), [code](../src/main.py) and "
            "[a page](https://example.org).\n\n```text\nnot an output\n```",
        ),
        Cell(True, "import llama_bolts.ml"),
    ]


def test_a_program_is_valid_and_a_notebook_is_of_jupyters_format():
    cells = cells_of(PAGE)
    compile(program(cells, "X.md"), "x", "exec")
    document = json.loads(notebook(cells))
    kinds = [cell["cell_type"] for cell in document["cells"]]
    assert kinds == ["markdown", "code", "markdown", "code"]
    assert all(cell["id"] for cell in document["cells"])
    nbformat = pytest.importorskip("nbformat", reason="the notebook extra is missing")
    nbformat.validate(document)


def test_the_files_are_current_and_there_are_no_others():
    texts = current_notebooks()
    files = {path for path in (ROOT / "notebooks").iterdir() if path.suffix != ""}
    assert files == set(texts)
    for path, text in texts.items():
        assert path.read_text(encoding="utf-8") == text, "python -m tools.update_docs"


TYPED = [*SESSIONS, *(ROOT / "docs").glob("14*.md")]


@pytest.mark.parametrize("page", TYPED, ids=name_of)
def test_each_cell_can_be_typed_into_an_interpreter_line_by_line(page):
    for example in examples(page.read_text(encoding="utf-8"), name_of(page)):
        place = f"{name_of(page)}:{example.code.line}"
        assert statements_of(example.code.text) >= 1, place


def statements_of(code: str) -> int:
    """Return the number of statements that an interpreter reads from typed lines.

    In an interpreter an empty line ends a function or a loop, and nothing else does.
    """
    count = 0
    typed: list[str] = []
    for line in [*code.rstrip("\n").split("\n"), ""]:
        typed.append(line)
        if compile_command("\n".join(typed)) is not None:
            count += any(map(str.strip, typed))
            typed = []
    assert typed == []
    return count


@pytest.mark.parametrize(
    "code", ["for i in range(2):\n    i\nprint(i)", "def f():\n    x = 1\n\n    return x"]
)
def test_code_that_an_interpreter_refuses_is_noticed(code):
    with pytest.raises(SyntaxError):
        statements_of(code)


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """Return an environment in which this checkout is the installed package."""
    place = tmp_path_factory.mktemp("installed")
    (place / "llama_bolts").symlink_to(ROOT / "src", target_is_directory=True)
    return os.environ | {"PYTHONPATH": str(place)}


@every_session
def test_the_program_runs_in_an_installation(name, environment, tmp_path):
    outcome = subprocess.run(
        [sys.executable, "-W", "error", ROOT / "notebooks" / f"{name}.py"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert outcome.returncode == 0, outcome.stderr
    assert "is equal in every bit" in outcome.stdout
    assert [*tmp_path.iterdir()] == []


@pytest.mark.slow
@every_session
def test_the_notebook_runs_from_top_to_bottom(name, environment, tmp_path, monkeypatch):
    nbclient = pytest.importorskip("nbclient", reason="the notebook extra is missing")
    nbformat = pytest.importorskip("nbformat", reason="the notebook extra is missing")
    pytest.importorskip("ipykernel", reason="the notebook extra is missing")
    monkeypatch.setenv("PYTHONPATH", environment["PYTHONPATH"])
    document = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
    place = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(document, timeout=60, resources=place).execute()
    shown = [
        output for cell in document.cells for output in cell.get("outputs", ())
    ]  # fmt: skip
    assert any("text/html" in output.get("data", {}) for output in shown)
    assert not any(output.output_type == "error" for output in shown)


@pytest.mark.real
@every_session
def test_the_program_runs_on_smollm2_after_a_change_of_one_line(
    name, environment, tmp_path
):
    try:
        find_model("smollm2")
    except CatalogError as error:
        pytest.skip(str(error))
    text = (ROOT / "notebooks" / f"{name}.py").read_text(encoding="utf-8")
    changed, count = re.subn(
        r"^model = load_model\(\)$|^path = None .*$",
        lambda line: (
            'path = "smollm2"'
            if line[0].startswith("path")
            else 'model = load_model("smollm2", dequantize=True)'
        ),
        text,
        flags=re.MULTILINE,
    )
    assert count == 1
    outcome = subprocess.run(
        [sys.executable, "-c", changed],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert outcome.returncode == 0, outcome.stderr


# ---- the comparison with the engine ----------------------------------------------------


def test_a_check_accepts_equal_bits_and_refuses_another_bit_shape_dtype_or_name():
    model = load_model()
    engine = record_pass(model, [1, 2, 3])
    x = engine.tensor(8, "xq", layer=0)
    line = "stage 8, layer 0: xq [3, 192] bfloat16 is equal in every bit"
    assert engine.check(x, 8, "xq", layer=0) == line
    assert (engine.logits == model([1, 2, 3])).all()
    x.bits()[1, 2] ^= 1
    with pytest.raises(
        ModelError, match=r"stage 8: 1 of 576 elements differ, with an rms"
    ):
        engine.check(x, 8, "xq", layer=0)
    with pytest.raises(ModelError, match=r"\[3, 64\] bfloat16 != \[3, 192\] bfloat16"):
        engine.check(x[:, :64], 8, "xq", layer=0)
    with pytest.raises(ModelError, match=r"float32 != \[3, 192\] bfloat16"):
        engine.check(x.float(), 8, "xq", layer=0)
    text = (
        r"^\[recording\] name must be a result of stage 13 of layer 0: add xq \(matmul "
        r"scores, multiply scores, add scores, softmax weights\)$"
    )
    with pytest.raises(ModelError, match=text):
        engine.values(13, "xq", layer=0, op="add")
    with pytest.raises(
        ModelError, match=r"stage 8: xq \(layer must be given: layer=0 is"
    ):
        engine.values(8, "xq")


def test_a_check_says_whether_a_difference_can_be_rounding():
    model = load_model()
    engine = record_pass(model, [1, 2, 3])
    scores = engine.tensor(13, "scores", 0, "multiply")
    rounded = scores * 3 / 3 + 1e-6
    with pytest.raises(ModelError, match="by rounding: the engine uses other ops or"):
        engine.check(rounded, 13, "scores", 0, "multiply")
    with pytest.raises(ModelError, match=r"with an rms of [\d.e-]+$"):
        engine.check(scores * 2, 13, "scores", 0, "multiply")


def test_a_check_distinguishes_zero_from_minus_zero():
    engine = record_pass(load_model(), [1, 2, 3])
    mask = engine.tensor(4, "mask", op="triu")
    engine.check(mask, 4, "mask")
    negative = ml.Tensor.from_numpy(
        np.where(mask.numpy() == 0, np.float32(-0.0), mask.numpy())
    )
    with pytest.raises(ModelError, match="6 of 9 elements differ"):
        engine.check(negative, 4, "mask")
