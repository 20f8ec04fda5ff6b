"""The pickle machine builds data and nothing else: rows P1 to P4, each with its valid
twin.
"""

from collections import OrderedDict
from typing import Any

import pytest

from src.checkpoint import CheckpointError
from src.checkpoint.pickle_machine import (
    MOST_OPCODES,
    TORCH_GLOBALS,
    Global,
    PickleMachine,
    StorageReference,
    TensorReference,
)
from tests.checkpoint import hostile_pickles as hostile
from tests.checkpoint.hostile_pickles import START, TENSOR
from tests.support.pth_writer import (
    ORDERED_DICT,
    dict_program,
    global_name,
    integer,
    storage_id,
    tensor_call,
    text,
)


def run(program: bytes) -> Any:
    return PickleMachine(program, "model.pth: data.pkl").run()


@pytest.mark.parametrize("name", hostile.CODE)
def test_code_is_refused_naming_opcode_position_and_global(name: str) -> None:
    program, words = hostile.CODE[name]
    with pytest.raises(CheckpointError, match=r" at byte \d") as caught:
        run(program)
    assert str(caught.value).startswith(f"model.pth: data.pkl: {name.split()[0]} ")
    assert words in str(caught.value)
    assert str(caught.value).isprintable()


WRONG = hostile.CONTAINERS | hostile.DAMAGED


@pytest.mark.parametrize("program", WRONG.values(), ids=WRONG)
def test_wrong_programs_are_refused_with_the_position(program: bytes) -> None:
    with pytest.raises(CheckpointError, match=r"at byte [0-9]+"):
        run(program)


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        (
            "tensor_v2",
            b"(" + b"K\x00" * 7 + b"t",
            "_rebuild_tensor_v2.*got 7 other arguments",
        ),
        (
            "tensor_v2",
            b"(" + b"K\x00" * 6 + b"t",
            "_rebuild_tensor_v2.a storage, .*got 6 other",
        ),
        ("parameter", b"K\x00K\x00\x86", "_rebuild_parameter.a tensor, a bool, "),
        ("parameter", b"K\x00K\x00K\x00\x87", "_rebuild_parameter.a tensor, a bool, "),
        (
            "parameter",
            TENSOR + b"K\x01" + ORDERED_DICT + b"\x87",
            "a bool, .*got 3 other arg",
        ),
        ("parameter", TENSOR + b"\x88}\x87", "an empty OrderedDict"),
    ],
)
def test_calls_with_other_arguments_are_refused(
    name: str, arguments: bytes, words: str
) -> None:
    with pytest.raises(CheckpointError, match=words):
        run(START + global_name("torch._utils", f"_rebuild_{name}") + arguments + b"R.")


def test_a_program_cut_at_any_byte_is_refused() -> None:
    program = dict_program({"a": TENSOR, "b": TENSOR})
    for length in range(len(program)):
        with pytest.raises(CheckpointError, match=r"at byte [0-9]+"):
            run(program[:length])
    run(program)


def test_the_number_of_opcodes_is_limited() -> None:
    fitting = START + b"(" + b"N" * (MOST_OPCODES - 4) + b"t."
    assert len(run(fitting)) == MOST_OPCODES - 4
    with pytest.raises(CheckpointError, match=f"at most {MOST_OPCODES} opcodes"):
        run(START + b"(" + b"N" * (MOST_OPCODES - 3) + b"t.")


@pytest.mark.parametrize(
    "value", [0, 255, 256, 65535, 65536, -1, -(1 << 31), 1 << 31, (1 << 63) - 1]
)
def test_integers_of_each_width_are_read(value: int) -> None:
    assert run(START + integer(value) + b".") == value


def test_an_integer_of_more_than_8_bytes_is_refused() -> None:
    assert run(START + b"\x8a\x08" + b"\x01" * 8 + b".") == 0x0101010101010101
    with pytest.raises(CheckpointError, match=r"LONG1 .* at most 8 bytes, got 9$"):
        run(START + b"\x8a\x09" + b"\x01" * 9 + b".")


@pytest.mark.parametrize("what", ["element count", "offset", "size", "stride"])
def test_a_size_may_be_2_to_the_48_and_no_more(what: str) -> None:
    def program(value: int) -> bytes:
        sizes = {"element count": 1, "offset": 0, "size": 1, "stride": 1} | {what: value}
        storage = storage_id("FloatStorage", "0", sizes["element count"])
        call = tensor_call(storage, sizes["offset"], [sizes["size"]], [sizes["stride"]])
        return START + call + b"."

    tensor = run(program(1 << 48))
    assert isinstance(tensor, TensorReference)
    found = (tensor.storage.element_count, tensor.offset, *tensor.shape, *tensor.strides)
    assert 1 << 48 in found
    words = f"{what}: expected an integer in 0..{1 << 48}, got {(1 << 48) + 1}$"
    with pytest.raises(CheckpointError, match=words):
        run(program((1 << 48) + 1))


def test_values_of_each_kind_are_read() -> None:
    program = (
        START + b"(N\x88\x89]" + text("ä\U0001f600") + b"a](K\x01K\x02e)\x85K\x07\x86"
    )
    expected = (None, True, False, ["ä\U0001f600"], [1, 2], (((),), 7))
    assert run(program + b"t.") == expected


@pytest.mark.parametrize(
    "program", [b"]q\x00h\x00\x86.", b"]r\x00\x01\x00\x00j\x00\x01\x00\x00\x86."]
)
def test_the_memo_gives_back_the_same_object(program: bytes) -> None:
    first, second = run(START + program)
    assert first is second


def test_attributes_of_an_ordered_dict_are_dropped() -> None:
    state = b"}" + text("_metadata") + ORDERED_DICT + b"s"
    items = b"(" + text("a") + TENSOR + b"u"
    value = run(START + ORDERED_DICT + items + state + b"b.")
    assert isinstance(value, OrderedDict)
    assert list(value) == ["a"]
    assert not hasattr(value, "_metadata")


def test_a_parameter_is_its_tensor() -> None:
    rebuild = global_name("torch._utils", "_rebuild_parameter")
    value = run(START + rebuild + b"(" + TENSOR + b"\x88" + ORDERED_DICT + b"tR.")
    assert isinstance(value, TensorReference)
    assert value.shape == (1,)


def test_all_six_globals_resolve_to_inert_values() -> None:
    assert len(TORCH_GLOBALS) == 6
    for module, name in TORCH_GLOBALS:
        value = run(START + global_name(module, name) + b".")
        assert isinstance(value, Global)
        assert value.name == f"{module}.{name}"


def test_a_storage_is_only_a_description() -> None:
    value = run(hostile.storage_program())
    assert isinstance(value, dict)
    tensor = value["a"]
    assert isinstance(tensor, TensorReference)
    assert tensor.storage == StorageReference(tensor.storage.dtype, "0", 6)
    assert (tensor.offset, tensor.shape, tensor.strides) == (0, (2, 3), (3, 1))
    for key in ("../0", "٠", "", "0" * 10):
        with pytest.raises(CheckpointError, match="expected a record number as key"):
            run(hostile.storage_program(key=text(key)))
