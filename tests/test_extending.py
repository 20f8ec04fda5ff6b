"""What the recipes for an op and for a dtype promise: their files, and a step that is
left out.
"""

import inspect
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from src import ml
from src.ml.kernels import available_isas, set_isa
from src.ml.op import OPS
from src.ml.ops import numpy_ops
from src.ml.ops.numpy_ops import ROWS, Row, in_float64, unary_op
from tests.csrc.quantized_operands import FORMATS

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "ADDING-A-DTYPE.md"
MOST_FILES = 6
FUNCTIONS = {
    name: getattr(ml, name)
    for name in ml.ops.__all__
    if inspect.isfunction(getattr(ml, name))
}
SMALL = [row for row in ml.DTYPES if row.kind == "float" and row.itemsize < 4]


def listed(heading: str) -> list[str]:
    """Returns the files in the table below a heading."""
    section = PAGE.read_text("utf-8").partition(f"### {heading}\n")[2].partition("\n#")[0]
    return re.findall(r"^\| `((?:src|csrc)/[\w./]+)` \|", section, flags=re.M)


def naming(pattern: str, *places: str) -> set[str]:
    """Returns the files of some folders that a pattern is found in."""
    files = [path for place in places for path in (ROOT / place).rglob("*")]
    sources = [path for path in files if path.suffix in {".py", ".c", ".h", ".inc"}]
    found = {
        path for path in sources if re.search(pattern, path.read_text("utf-8"), re.I)
    }
    return {path.relative_to(ROOT).as_posix() for path in found}


def test_the_files_that_a_dtype_touches_are_those_of_the_page():
    for heading, expected in (
        ("The files of a plain dtype", naming("float8_e5m2", "src", "csrc")),
        (
            "The files of a block format",
            naming("int8_block", "csrc") | {"src/ml/dtype.py"},
        ),
    ):
        files = listed(heading)
        assert set(files) == expected
        assert len(files) == len(expected) <= MOST_FILES


def test_every_block_format_of_the_table_is_tested():
    assert {dtype for dtype, _double in FORMATS} == set(ml.BLOCK_DTYPES)


@pytest.mark.parametrize("dtype", SMALL, ids=str)
@pytest.mark.parametrize("isa", available_isas())
def test_a_product_has_the_bits_of_that_with_the_weight_widened(dtype, isa):
    used = ml.build_info()["isa"]
    widened = ml.bfloat16 if dtype.product_type == "bfloat16" else ml.float32
    generator = ml.Generator(3)
    weight = ml.randn(70, 100, generator=generator).to(dtype)
    set_isa(isa)
    try:
        for T in (1, 7):
            x = ml.randn(T, 100, generator=generator, dtype=widened)
            product = ml.linear_transformation(x, weight, ml.float32)
            expected = ml.linear_transformation(x, weight.to(widened), ml.float32)
            assert product.numpy().tobytes() == expected.numpy().tobytes()
            assert np.abs(expected.numpy()).max() > 1
    finally:
        set_isa(used)


# ---- ops -------------------------------------------------------------------------------


def texts_of_tests(folder: Path) -> str:
    return "\n".join(path.read_text("utf-8") for path in folder.rglob("test_*.py"))


def test_every_function_that_ops_exports_is_an_op():
    # `ml.cat` is a second name of an op.
    assert {function.__name__ for function in FUNCTIONS.values()} <= OPS.keys()


def ops_of_modules() -> set[str]:
    """Return the names of the ops that modules of `ml` define.

    An example of chapter 20 also makes an op with a builder of `numpy_ops.py`, but does
    not define it in that module.
    """
    names = set()
    for name, op in OPS.items():
        owner: Any = sys.modules[op.__module__]
        for part in op.__qualname__.split("."):
            owner = getattr(owner, part, None)
        if op.__module__.startswith(ml.__name__) and owner is op:
            names.add(name)
    return names


def test_every_op_is_exported_or_a_method():
    exported = {*ml.ops.__all__, *vars(ml.Tensor)}
    assert ops_of_modules() <= exported
    assert {"exp", "less", "softmax", "reshape", "set_slice"} <= ops_of_modules()


def test_an_op_of_a_row_that_is_not_exported_is_found(monkeypatch):
    monkeypatch.setitem(OPS, "sine", None)
    monkeypatch.setitem(ROWS, "sine", None)
    sine = unary_op(Row("sine", np.sin, in_float64, "sin(x)", "the sine"))
    assert "sine" not in ops_of_modules()
    monkeypatch.setattr(numpy_ops, "sine", sine, raising=False)
    assert "sine" in ops_of_modules()


def test_every_op_is_called_by_a_test():
    text = texts_of_tests(ROOT / "tests" / "ml")
    named = {*re.findall(r"\.(\w+)", text), *re.findall(r'"(\w+)"', text)}
    # `test_numpy_ops.py` calls the ops of all rows.
    assert FUNCTIONS.keys() - named - ROWS.keys() == set()


@pytest.mark.parametrize("page", ["20-extending.md", "ADDING-A-DTYPE.md"])
def test_every_test_that_a_recipe_names_is_there(page):
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs" / page).read_text("utf-8")))
    assert named
    assert (
        named - {*re.findall(r"def (test_\w+)\(", texts_of_tests(ROOT / "tests"))}
        == set()
    )
