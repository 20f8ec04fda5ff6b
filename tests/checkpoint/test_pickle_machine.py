"""The pickle machine builds data and nothing else: rows P1 to P4, each with its valid twin."""

import contextlib
from collections.abc import Callable

import pytest

from src.checkpoint import CheckpointError
from src.checkpoint.pickle_machine import (
    MOST_OPCODES,
    TORCH_GLOBALS,
    Global,
    OrderedDictValue,
    PickleMachine,
    StorageReference,
    TensorReference,
)
from tests.checkpoint import hostile_pickles as hostile
from tests.support.pth_writer import (
    dict_program,
    global_name,
    integer,
    storage_id,
    tensor_call,
    text,
)


def run(program: bytes) -> object:
    return PickleMachine(program, "model.pth: data.pkl").run()


@pytest.mark.parametrize(("program", "words"), hostile.CODE.values(), ids=hostile.CODE)
def test_code_is_refused_naming_opcode_position_and_global(
    program: bytes, words: tuple[str, ...]
) -> None:
    with pytest.raises(CheckpointError) as caught:
        run(program)
    assert str(caught.value).startswith("model.pth: data.pkl: ")
    for word in words:
        assert word in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("program", hostile.CONTAINERS.values(), ids=hostile.CONTAINERS)
def test_items_are_set_only_in_dicts_and_appended_only_to_lists(program: bytes) -> None:
    with pytest.raises(CheckpointError):
        run(program)


@pytest.mark.parametrize("program", hostile.DAMAGED.values(), ids=hostile.DAMAGED)
def test_damaged_programs_are_refused_with_the_position(program: bytes) -> None:
    with pytest.raises(CheckpointError, match=r"at byte [0-9]+"):
        run(program)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (("_rebuild_tensor_v2", b"(" + b"K\x00" * 7 + b"t"), "expected 6 arguments, got 7"),
        (("_rebuild_tensor_v2", b"(" + b"K\x00" * 6 + b"t"), "expected a storage as first"),
        (("_rebuild_parameter", b"K\x00K\x00\x86"), "expected .tensor, requires_grad, hooks"),
        (("_rebuild_parameter", b"K\x00K\x00K\x00\x87"), "expected .tensor, requires_grad, hooks"),
        (
            ("_rebuild_parameter", hostile.TENSOR + b"K\x01" + hostile.ORDERED_DICT + b"\x87"),
            "a bool",
        ),
        (("_rebuild_parameter", hostile.TENSOR + b"\x88}\x87"), "an empty OrderedDict"),
    ],
)
def test_calls_with_other_arguments_are_refused(call: tuple[str, bytes], words: str) -> None:
    name, arguments = call
    with pytest.raises(CheckpointError, match=words):
        run(hostile.START + global_name("torch._utils", name) + arguments + b"R.")


def test_a_global_from_values_that_are_no_names_is_refused_too() -> None:
    with pytest.raises(CheckpointError, match=r"STACK_GLOBAL at byte 6: .*got STACK_GLOBAL$"):
        run(hostile.START + b"K\x01K\x02\x93.")


def test_a_program_cut_at_any_byte_is_refused() -> None:
    program = dict_program({"a": hostile.TENSOR, "b": hostile.TENSOR})
    for length in range(len(program)):
        with pytest.raises(CheckpointError, match=r"at byte [0-9]+"):
            run(program[:length])
    run(program)


@pytest.mark.parametrize("program", hostile.GREEDY.values(), ids=hostile.GREEDY)
def test_greedy_programs_end_without_recursion_or_any_other_error(program: bytes) -> None:
    # Deep and cyclic values are data; test_torch_pth shows that they are refused as content.
    with contextlib.suppress(CheckpointError):
        run(program)


@pytest.mark.parametrize(
    ("program", "got"), [(b"\x80\x03N.", "3"), (b"\x80\x02\x80\x02N.", "2 after the start")]
)
def test_another_protocol_or_a_second_one_is_refused(program: bytes, got: str) -> None:
    with pytest.raises(CheckpointError, match=f"expected protocol 2 at byte 0, got {got}$"):
        run(program)


def test_the_number_of_opcodes_is_limited() -> None:
    fitting = hostile.START + b"(" + b"N" * (MOST_OPCODES - 4) + b"t."
    assert len(run(fitting)) == MOST_OPCODES - 4
    with pytest.raises(CheckpointError, match=f"at most {MOST_OPCODES} opcodes"):
        run(hostile.START + b"(" + b"N" * (MOST_OPCODES - 3) + b"t.")


@pytest.mark.parametrize(
    "value", [0, 255, 256, 65535, 65536, -1, -(1 << 31), 1 << 31, (1 << 63) - 1]
)
def test_integers_of_each_width_are_read(value: int) -> None:
    assert run(hostile.START + integer(value) + b".") == value


def test_an_integer_of_more_than_8_bytes_is_refused() -> None:
    assert run(hostile.START + b"\x8a\x08" + b"\x01" * 8 + b".") == 0x0101010101010101
    with pytest.raises(CheckpointError, match=r"LONG1 .* of at most 8 bytes, got 9$"):
        run(hostile.START + b"\x8a\x09" + b"\x01" * 9 + b".")


SIZES: dict[str, Callable[[int], bytes]] = {
    "element count": lambda value: hostile.storage_program(count=integer(value)),
    "offset": lambda value: tensor_program(value, 1, 1),
    "size": lambda value: tensor_program(0, value, 1),
    "stride": lambda value: tensor_program(0, 1, value),
}


def tensor_program(offset: int, size: int, stride: int) -> bytes:
    storage = storage_id("FloatStorage", "0", 1)
    return dict_program({"a": tensor_call(storage, offset, [size], [stride])})


@pytest.mark.parametrize("what", SIZES)
def test_a_size_may_be_2_to_the_48_and_no_more(what: str) -> None:
    value = run(SIZES[what](1 << 48))
    assert isinstance(value, dict)
    tensor = value["a"]
    found = (tensor.storage.element_count, tensor.offset, *tensor.shape, *tensor.strides)
    assert 1 << 48 in found
    words = f"{what}: expected an integer in 0..{1 << 48}, got {(1 << 48) + 1}$"
    with pytest.raises(CheckpointError, match=words):
        run(SIZES[what]((1 << 48) + 1))


def test_values_of_each_kind_are_read() -> None:
    program = hostile.START + b"(N\x88\x89]" + text("ä\U0001f600") + b"a](K\x01K\x02e)\x85K\x07\x86"
    expected = (None, True, False, ["ä\U0001f600"], [1, 2], (((),), 7))
    assert run(program + b"t.") == expected


def test_the_memo_gives_back_the_same_object() -> None:
    first, second = run(hostile.START + b"]q\x00h\x00\x86.")
    assert first is second
    first, second = run(hostile.START + b"]r\x00\x01\x00\x00j\x00\x01\x00\x00\x86.")
    assert first is second


def test_attributes_of_an_ordered_dict_are_dropped() -> None:
    state = b"}" + text("_metadata") + hostile.ORDERED_DICT + b"s"
    items = b"(" + text("a") + hostile.TENSOR + b"u"
    value = run(hostile.START + hostile.ORDERED_DICT + items + state + b"b.")
    assert isinstance(value, OrderedDictValue)
    assert list(value) == ["a"]
    assert not hasattr(value, "_metadata")


def test_a_parameter_is_its_tensor() -> None:
    rebuild = global_name("torch._utils", "_rebuild_parameter")
    value = run(
        hostile.START + rebuild + b"(" + hostile.TENSOR + b"\x88" + hostile.ORDERED_DICT + b"tR."
    )
    assert isinstance(value, TensorReference)
    assert value.shape == (1,)


def test_all_six_globals_resolve_to_inert_values() -> None:
    assert len(TORCH_GLOBALS) == 6
    for module, name in TORCH_GLOBALS:
        value = run(hostile.START + global_name(module, name) + b".")
        assert isinstance(value, Global)
        assert value.name == f"{module}.{name}"


def test_a_storage_is_only_a_description() -> None:
    value = run(hostile.storage_program())
    assert isinstance(value, dict)
    tensor = value["a"]
    assert isinstance(tensor, TensorReference)
    assert tensor.storage == StorageReference(tensor.storage.dtype, "0", 6)
    assert (tensor.offset, tensor.shape, tensor.strides) == (0, (2, 3), (3, 1))
