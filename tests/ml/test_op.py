from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from src import ml, trace
from src.ml import op as op_module
from src.ml.ops.elementwise import add as added


class Listener:
    """Keeps what is reported, and calls every result `seen`."""

    def __init__(self) -> None:
        self.reports: list[tuple[str, list[str], tuple[int, ...], dict[str, Any]]] = []

    def op(
        self, op: str, inputs: Any, result: Any, details: Any, seconds: float | None
    ) -> str:
        assert seconds is None or seconds >= 0
        names = [x.name for x in inputs]
        self.reports.append((op, names, result.shape, dict(details)))
        return "seen"

    def close(self) -> None:
        self.reports.clear()


@pytest.fixture
def listener() -> Iterator[Listener]:
    listener = Listener()
    trace.start(listener)
    yield listener
    trace.stop()


def tensor(*shape: int) -> ml.Tensor:
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    return ml.Tensor.from_numpy(values, name="mine")


def test_an_op_reports_its_inputs_its_result_and_its_arguments(
    listener: Listener,
) -> None:
    result = ml.softmax(tensor(2, 3), dim=-1, dtype=ml.bfloat16)
    assert result.name == "seen"
    assert listener.reports == [
        ("softmax", ["mine"], (2, 3), {"dim": -1, "dtype": ml.bfloat16})
    ]


def test_methods_report_themselves_and_set_slice_the_slice(listener: Listener) -> None:
    x = tensor(4, 2)
    x.set_slice(1, 3, tensor(2, 2))
    x.reshape(8).to(ml.bfloat16)
    x.transpose(0, 1)
    x.slice(1, 2)
    assert [(op, shape) for op, _, shape, _ in listener.reports] == [
        ("set_slice", (2, 2)), ("reshape", (8,)), ("to", (8,)), ("transpose", (2, 4)),
        ("slice", (1, 2)),
    ]  # fmt: skip


def test_an_op_inside_an_op_and_a_conversion_to_itself_are_not_reported(
    listener: Listener,
) -> None:
    x = tensor(2, 3)
    assert x.to(ml.float32) is x
    ml.matmul(x.to(ml.float16), tensor(3, 2).to(ml.float16))
    assert [op for op, *_ in listener.reports] == ["to", "to", "matmul"]


def test_an_op_with_several_results_reports_each_and_returns_them_named(
    listener: Listener,
) -> None:
    cache = ml.KeyValueCache(256, 2, 4, ml.float32)
    xk = tensor(3, 2, 4).with_name("xk")
    xv = tensor(3, 2, 4).with_name("xv")
    assert ml.write_cache(cache, 2, xk, xv) is None
    keys, values = ml.read_cache(cache, 2, 5)
    assert (keys.name, values.name) == ("seen", "seen")
    np.testing.assert_array_equal(keys.numpy(), xk.numpy())
    written = ("write_cache", ["xk", "xv"], (3, 2, 4), {"start_pos": 2, "C": 256})
    read = ("read_cache", [], (3, 2, 4), {"start": 2, "stop": 5, "C": 256})
    assert listener.reports == [written, written, read, read]
    ml.write_cache(cache, ml.Spans([(2, 3, [0])]), xk, xv)
    assert listener.reports[4:] == [(*written[:3], {"C": 256})] * 2


def test_sequences_are_inputs_and_a_result_shows_its_own_where_each_has_one(
    listener: Listener,
) -> None:
    x = tensor(2).with_name("x")
    weights = [tensor(3, 2).with_name(name) for name in "abc"]
    ml.linear_transformations(x, weights)
    ml.concatenate(weights)
    inputs = [names for _, names, *_ in listener.reports]
    assert inputs == [["x", "a"], ["x", "b"], ["x", "c"], ["a", "b", "c"]]


def test_an_op_that_fails_raises_its_error_and_the_next_one_reports(
    listener: Listener,
) -> None:
    with pytest.raises(ml.ShapeError, match="matmul"):
        ml.matmul(tensor(2, 3), tensor(2, 3))
    ml.ones((1,), ml.float32)
    assert [op for op, *_ in listener.reports] == ["ones"]


def test_an_op_reports_by_its_name_whatever_name_it_is_called_by(
    listener: Listener,
) -> None:
    x = tensor(2)
    plus = ml.add
    added(x, x)
    plus(x, x)
    _ = x + x
    assert [op for op, *_ in listener.reports] == ["add"] * 3


def test_observers_come_and_go_and_each_is_told_of_the_same_calls() -> None:
    first: list[ml.OpCall] = []
    second: list[ml.OpCall] = []
    ml.subscribe(first.append)
    ml.subscribe(second.append)
    result = ml.add(tensor(2), 1.5)
    ml.unsubscribe(first.append)
    ml.softmax(result)
    ml.unsubscribe(second.append)
    ml.softmax(result)
    assert [call.op for call in first] == ["add"]
    assert [call.op for call in second] == ["add", "softmax"]
    assert first[0].results == (result,)
    assert first[0].scalars == {"b": 1.5}
    assert [x.name for x in first[0].inputs(0)] == ["mine"]
    assert op_module._observers == ()


def test_a_changer_replaces_results_before_observers_see_them() -> None:
    seen: list[ml.OpCall] = []
    names: list[str] = []

    def change(op: str, result: Any) -> tuple[Any, tuple[str, ...]] | None:
        names.append(op)
        is_softmax = op == "softmax"
        return (ml.zeros_like(result), ("softmax=0",)) if is_softmax else None

    x = ml.ones(2, 3)
    ml.subscribe(seen.append)
    op_module.subscribe_changer(change)
    result = ml.softmax(ml.add(x, x))
    op_module.unsubscribe_changer(change)
    ml.unsubscribe(seen.append)
    assert not result.numpy().any()
    assert ml.softmax(x).numpy().any()
    assert names == ["add", "softmax"]  # the ops of the changer itself are not changed
    assert [call.changes for call in seen] == [(), ("softmax=0",)]
    assert seen[1].results == (result,)
    assert op_module._changers == ()
    assert not op_module._is_observed


def test_memory_that_numpy_does_not_get_is_our_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_given: object, **_named: object) -> None:
        raise MemoryError

    monkeypatch.setattr(np, "concatenate", refuse)
    with pytest.raises(
        ml.TensorMemoryError, match=r"^\[concatenate\] memory: the system refused"
    ):
        ml.concatenate([tensor(2), tensor(2)])


@pytest.fixture
def defined() -> Iterator[Any]:
    """Make ops for a test alone."""
    before = dict(op_module.OPS)
    yield op_module.op
    op_module.OPS.clear()
    op_module.OPS.update(before)


def test_annotations_that_are_strings_are_resolved_when_an_op_fails(defined: Any) -> None:
    @defined
    def failing(x: "ml.Tensor", y: "ml.Tensor | float | None" = None) -> None:
        raise TypeError("not ours")

    with pytest.raises(ml.TensorTypeError, match=r"x must be a Tensor: list$"):
        failing([1.0])
    with pytest.raises(ml.TensorTypeError, match=r"y must be a Tensor: str$"):
        failing(tensor(1), "1")
    for right in (tensor(1), 1.5, 1, np.float32(1), None):
        with pytest.raises(TypeError, match=r"^not ours$"):
            failing(tensor(1), right)


def test_an_annotation_that_only_type_checkers_resolve_checks_nothing(
    defined: Any,
) -> None:
    @defined
    def failing(x: "Unknown") -> None:  # type: ignore[name-defined]  # noqa: F821
        raise TypeError("not ours")

    with pytest.raises(TypeError, match=r"^not ours$"):
        failing([1.0])
