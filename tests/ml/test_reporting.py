import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from src import ml
from src.ml import ops
from src.ml.reporting import REPORTED_METHODS, _Reporter, report_ops_to
from src.ml.tensor import Tensor


class Listener:
    """Keeps what is reported, and calls every result `seen`."""

    def __init__(self) -> None:
        self.reports: list[tuple[str, list[str], tuple[int, ...], dict[str, Any]]] = []

    def op(self, op: str, inputs: Any, result: Any, details: Any, seconds: float) -> str:
        assert seconds >= 0
        names = [x.name for x in inputs]
        self.reports.append((op, names, result.shape, dict(details)))
        return "seen"


@pytest.fixture
def listener() -> Iterator[Listener]:
    listener = Listener()
    report_ops_to(listener)
    yield listener
    report_ops_to(None)


def tensor(*shape: int) -> ml.Tensor:
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    return ml.Tensor.from_numpy(values, name="mine")


def test_an_op_reports_its_inputs_its_result_and_its_arguments(listener: Listener) -> None:
    result = ml.softmax(tensor(2, 3), dim=-1, dtype=ml.bfloat16)
    assert result.name == "seen"
    assert listener.reports == [("softmax", ["mine"], (2, 3), {"dim": -1, "dtype": ml.bfloat16})]


def test_methods_report_themselves_and_a_slice_that_is_set_reports_the_slice(
    listener: Listener,
) -> None:
    x = tensor(4, 2)
    x.set_slice(1, 3, tensor(2, 2))
    x.reshape(8).to(ml.bfloat16)
    x.transpose(0, 1)
    x.slice(1, 2)
    assert [(op, shape) for op, _, shape, _ in listener.reports] == [
        ("set_slice", (2, 2)), ("reshape", (8,)), ("to", (8,)), ("transpose", (2, 4)),
        ("slice", (1, 2)),
    ]  # fmt: skip


def test_an_op_inside_an_op_and_a_conversion_to_the_same_dtype_are_not_reported(
    listener: Listener,
) -> None:
    x = tensor(2, 3)
    assert x.to(ml.float32) is x
    ml.matmul(x.to(ml.float16), tensor(3, 2).to(ml.float16))
    assert [op for op, *_ in listener.reports] == ["to", "to", "matmul"]


def test_sequences_of_tensors_are_inputs(listener: Listener) -> None:
    ml.concatenate([tensor(1, 2), tensor(3, 2)])
    assert listener.reports == [("concatenate", ["mine", "mine"], (4, 2), {})]


def test_an_op_with_several_results_reports_each_and_returns_them_named(
    listener: Listener,
) -> None:
    cache = ml.KeyValueCache(8, 2, 4, ml.float32)
    xk, xv = tensor(3, 2, 4).with_name("xk"), tensor(3, 2, 4).with_name("xv")
    assert ml.write_cache(cache, 2, xk, xv) is None
    keys, values = ml.read_cache(cache, 2, 5)
    assert (keys.name, values.name) == ("seen", "seen")
    np.testing.assert_array_equal(keys.numpy(), xk.numpy())
    written = ("write_cache", ["xk", "xv"], (3, 2, 4), {"start_pos": 2})
    read = ("read_cache", [], (3, 2, 4), {"start": 2, "stop": 5})
    assert listener.reports == [written, written, read, read]


def test_of_a_sequence_with_one_tensor_per_result_a_line_shows_its_own() -> None:
    def doubled(x: ml.Tensor, others: tuple[ml.Tensor, ...]) -> tuple[ml.Tensor, ...]:
        return tuple(ml.add(x, other) for other in others)

    listener = Listener()
    x, others = tensor(2).with_name("x"), [tensor(2).with_name(name) for name in "abc"]
    _Reporter(listener).wrapped("doubled", doubled)(x, others)  # type: ignore[arg-type]
    assert [inputs for _, inputs, *_ in listener.reports] == [["x", "a"], ["x", "b"], ["x", "c"]]


def test_an_op_that_fails_raises_its_error_and_the_next_one_reports(listener: Listener) -> None:
    with pytest.raises(ml.ShapeError, match="matmul"):
        ml.matmul(tensor(2, 3), tensor(2, 3))
    ml.ones((1,), ml.float32)
    assert [op for op, *_ in listener.reports] == ["ones"]


def test_results_have_the_same_bits_and_lie_where_they_would(listener: Listener) -> None:
    x = tensor(4, 2)
    assert x.slice(1, 3).data_pointer == x.data_pointer + 8
    np.testing.assert_array_equal(ml.add(x, x).numpy(), 2 * x.numpy())


def test_off_every_public_name_is_the_function_itself() -> None:
    report_ops_to(Listener())
    assert all(hasattr(getattr(ml, name), "__wrapped__") for name in ops.__all__)
    report_ops_to(None)
    for name in ops.__all__:
        function = getattr(ml, name)
        assert function is getattr(ops, name)
        assert not hasattr(function, "__wrapped__")
        assert function.__code__.co_name == name
    for name in REPORTED_METHODS:
        assert Tensor.__dict__[name].__code__.co_name == name


def test_no_room_imports_an_op_by_itself_since_that_name_would_not_report() -> None:
    for path in Path(ml.__file__).parents[1].rglob("*.py"):
        if path.is_relative_to(Path(ml.__file__).parent):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "ml":
                assert not {name.name for name in node.names} & set(ops.__all__), path
