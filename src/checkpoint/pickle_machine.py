"""A pickle interpreter that can build data and nothing else.

A pickle is a program for a small stack machine, and Python's own machine lets the program import
and call what it likes. This one knows the opcodes that `torch.save` writes (protocol 2), resolves a
global only through a table of six inert stand-ins, and calls only those. It imports nothing, does
not recurse, and holds no more objects than it has executed opcodes, whose number is limited.

The pickle of a state dict says of each tensor which storage it is in and at what offset, size and
stride. What comes out are descriptions, never tensors: `torch_pth` compares them with the bytes.

Source: CPython's `Lib/pickletools.py`, which specifies each opcode (protocols 0 to 5);
`Lib/pickle.py` for what the pickler emits; PyTorch 2.13, `torch/_utils.py` (`_rebuild_tensor_v2`,
`_rebuild_parameter`) and `torch/serialization.py` (`persistent_id` of `_save`).
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from pickletools import opcodes  # their names: nothing there runs a pickle
from typing import NoReturn

from .. import ml
from ..untrusted import described, is_integer, shown
from .errors import CheckpointError

# 405 B parameters in one file are 1 138 tensors of about 50 opcodes each. The limit also bounds
# the memory of a hostile program: about 100 bytes per opcode.
MOST_OPCODES = 1 << 17

_LONGEST_GLOBAL_LINE = 256
_LONGEST_INTEGER = 8
_PROTOCOL = 2
_LARGEST_SIZE = 1 << 48
_MOST_DIMENSIONS = 8
_LONGEST_KEY = 9

# The name of each opcode, for example `GLOBAL`; other bytes are `byte 0xff`.
_OPCODES = {code: f"byte 0x{code:02x}" for code in range(0x100)}
_OPCODES |= {ord(opcode.code): opcode.name for opcode in opcodes}


class OrderedDictValue(dict[str, object]):
    """What `collections.OrderedDict` stands for: a dict whose attributes (BUILD) are dropped."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Global:
    """A global by its dotted name, and what it means here."""

    name: str
    # Of a storage class of torch, the dtype of its elements. Of what REDUCE may call, a
    # function of the tuple of arguments that checks them and returns an inert value; it
    # raises ValueError with `expected X, got Y` on bad ones.
    meaning: ml.DType | Callable[[tuple[object, ...]], object]


@dataclass(frozen=True, slots=True)
class StorageReference:
    """The record `data/<key>` seen as `element_count` elements of `dtype`."""

    dtype: ml.DType
    key: str
    element_count: int


@dataclass(frozen=True, slots=True)
class TensorReference:
    """A strided window on a storage; offset and strides count elements, as PyTorch counts them."""

    storage: StorageReference
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def _kind(value: object) -> str:
    return value.name if isinstance(value, Global) else described(value)


def _load_storage(persistent_id: object) -> StorageReference:
    """Read a persistent id `("storage", class, key, device, element count)`.

    The device is where the tensor was when it was saved (`cpu`, `cuda:0`) and changes nothing here.
    """
    if not isinstance(persistent_id, tuple) or len(persistent_id) != 5:
        raise ValueError("expected a tuple of 5 values, got something else")
    tag, storage_class, key, device, count = persistent_id
    dtype = storage_class.meaning if isinstance(storage_class, Global) else None
    if tag != "storage" or not isinstance(dtype, ml.DType):
        raise ValueError("expected ('storage', a storage class, ...), got something else")
    if not isinstance(key, str) or not isinstance(device, str):
        raise ValueError("expected a key and a device label as text, got something else")
    if not (key.isascii() and key.isdigit()) or len(key) > _LONGEST_KEY:
        raise ValueError(f"expected a record number as key, got {shown(key)}")
    return StorageReference(dtype, key, _size(count, "element count"))


def _size(value: object, what: str) -> int:
    if not is_integer(value, 0, _LARGEST_SIZE):
        raise ValueError(f"{what}: expected an integer in 0..{_LARGEST_SIZE}, got {_kind(value)}")
    return value


def _sizes(value: object, what: str) -> tuple[int, ...]:
    if not isinstance(value, tuple) or len(value) > _MOST_DIMENSIONS:
        rule = f"a tuple of at most {_MOST_DIMENSIONS} integers"
        raise ValueError(f"{what}: expected {rule}, got something else")
    return tuple(_size(item, what) for item in value)


def _rebuild_tensor(arguments: tuple[object, ...]) -> TensorReference:
    """Replace `_rebuild_tensor_v2(storage, offset, size, stride, requires_grad, hooks)`."""
    if len(arguments) != 6:
        # A seventh argument carries the conjugate and negative bits, which change the values.
        raise ValueError(f"expected 6 arguments, got {len(arguments)}")
    storage, offset, shape, strides, requires_grad, hooks = arguments
    if not isinstance(storage, StorageReference):
        raise ValueError("expected a storage as first argument, got something else")
    _check_training_state(requires_grad, hooks)
    reference = TensorReference(
        storage, _size(offset, "offset"), _sizes(shape, "size"), _sizes(strides, "stride")
    )
    if len(reference.shape) != len(reference.strides):
        rule = f"as many strides as the {len(reference.shape)} sizes"
        raise ValueError(f"expected {rule}, got {len(reference.strides)}")
    return reference


def _rebuild_parameter(arguments: tuple[object, ...]) -> TensorReference:
    """Replace `_rebuild_parameter(data, requires_grad, hooks)`: the tensor itself."""
    if len(arguments) != 3 or not isinstance(arguments[0], TensorReference):
        raise ValueError("expected (tensor, requires_grad, hooks), got something else")
    _check_training_state(arguments[1], arguments[2])
    return arguments[0]


def _check_training_state(requires_grad: object, hooks: object) -> None:
    if not isinstance(requires_grad, bool) or not isinstance(hooks, OrderedDictValue) or hooks:
        raise ValueError("expected a bool and an empty OrderedDict of hooks, got something else")


def _ordered_dict(arguments: tuple[object, ...]) -> OrderedDictValue:
    if arguments:
        raise ValueError(f"expected no arguments, got {len(arguments)}")
    return OrderedDictValue()


TORCH_GLOBALS: dict[tuple[str, str], Global] = {
    (module, name): Global(f"{module}.{name}", meaning)
    for module, name, meaning in (
        ("torch._utils", "_rebuild_tensor_v2", _rebuild_tensor),
        ("torch._utils", "_rebuild_parameter", _rebuild_parameter),
        ("collections", "OrderedDict", _ordered_dict),
        ("torch", "BFloat16Storage", ml.bfloat16),
        ("torch", "HalfStorage", ml.float16),
        ("torch", "FloatStorage", ml.float32),
    )
}
"""The six allowed globals by (module, name)."""


class PickleMachine:
    """Run one pickle program.

    Args:
        program: The whole pickle, STOP included and nothing after it.
        label: What to call it in errors, for example `model.pth: data.pkl`.
    """

    def __init__(self, program: bytes, label: str) -> None:
        self._program = program
        self._label = label
        self._position = 0
        self._opcode_at = 0
        self._stack: list[object] = []
        self._marks: list[int] = []
        self._memo: dict[int, object] = {}

    def run(self) -> object:
        """Execute the program up to STOP and return the one value it leaves.

        Raises:
            CheckpointError: Anything but a well-formed program of allowed opcodes.
        """
        program, executed = self._program, 0
        while True:
            self._opcode_at = self._position
            executed += 1
            if executed > MOST_OPCODES:
                self._refuse(f"expected at most {MOST_OPCODES} opcodes, got more")
            if self._position >= len(program):
                self._refuse("expected STOP, got the end of the data")
            code = program[self._position]
            self._position += 1
            if code == _STOP:
                return self._stop()
            handler = _HANDLERS.get(code)
            if handler is None:
                self._refuse_opcode(_OPCODES[code])
            handler(self)

    def _refuse(self, reason: str) -> NoReturn:
        at = self._opcode_at
        name = _OPCODES[self._program[at]] if at < len(self._program) else "end"
        raise CheckpointError(f"{self._label}: {name} at byte {at}: {reason}") from None

    def _refuse_opcode(self, name: str) -> NoReturn:
        """Refuse an opcode outside the allow-list; name the global that it asks for, if any."""
        wanted = ""
        if name == "INST":
            wanted = f" for {shown(self._line() + '.' + self._line())}"
        elif name == "STACK_GLOBAL" and len(self._stack) >= 2:
            module, attribute = self._stack[-2:]
            if isinstance(module, str) and isinstance(attribute, str):
                wanted = f" for {shown(module[:200] + '.' + attribute[:200])}"
        self._refuse(f"expected an opcode that torch.save writes, got {name}{wanted}")

    # Bytes of the program

    def _take(self, count: int) -> bytes:
        left = len(self._program) - self._position
        if count > left:
            self._refuse(f"expected {count} bytes, got {left} to the end of the data")
        start = self._position
        self._position += count
        return self._program[start : start + count]

    def _line(self) -> str:
        stop = self._program.find(b"\n", self._position, self._position + _LONGEST_GLOBAL_LINE)
        if stop < 0:
            self._refuse(f"expected a line of at most {_LONGEST_GLOBAL_LINE} bytes, got no end")
        line = self._program[self._position : stop]
        self._position = stop + 1
        return line.decode("utf-8", "replace")

    # Stack, marks, memo

    def _pop(self) -> object:
        floor = self._marks[-1] if self._marks else 0
        if len(self._stack) <= floor:
            self._refuse("expected a value on the stack, got none")
        return self._stack.pop()

    def _top(self) -> object:
        value = self._pop()
        self._stack.append(value)
        return value

    def _pop_to_mark(self) -> list[object]:
        if not self._marks:
            self._refuse("expected a MARK on the stack, got none")
        mark = self._marks.pop()
        values = self._stack[mark:]
        del self._stack[mark:]
        return values

    def _put(self, index: int) -> None:
        # A pickler numbers its memo from 0 up and never twice: anything else is a trick.
        if index >= MOST_OPCODES or index in self._memo:
            rule = f"a new memo index below {MOST_OPCODES}"
            self._refuse(f"expected {rule}, got {index}")
        self._memo[index] = self._top()

    def _get(self, index: int) -> None:
        if index not in self._memo:
            self._refuse(f"expected a memo index that was set, got {index}")
        self._stack.append(self._memo[index])

    def _set_items(self, items: list[object]) -> None:
        target = self._top()
        if not isinstance(target, dict):
            self._refuse(f"expected a dict to set items in, got {_kind(target)}")
        if len(items) % 2:
            self._refuse(f"expected pairs of key and value, got {len(items)} values")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, str):
                self._refuse(f"expected a str as key, got {_kind(key)}")
            if key in target:
                self._refuse(f"expected each key once, got {shown(key)} again")
            target[key] = value

    def _extend(self, items: list[object]) -> None:
        target = self._top()
        if not isinstance(target, list):
            self._refuse(f"expected a list to append to, got {_kind(target)}")
        target.extend(items)

    # Opcodes

    def _stop(self) -> object:
        value = self._pop()
        left = len(self._program) - self._position
        if left:
            self._refuse(f"expected the end of the data, got {left} more bytes")
        if self._stack or self._marks:
            self._refuse(f"expected one value on the stack, got {len(self._stack) + 1}")
        return value

    def _op_proto(self) -> None:
        version = self._take(1)[0]
        if version != _PROTOCOL or self._opcode_at != 0:
            where = "" if self._opcode_at == 0 else " after the start"
            self._refuse(f"expected protocol {_PROTOCOL} at byte 0, got {version}{where}")

    def _op_global(self) -> None:
        module, name = self._line(), self._line()
        found = TORCH_GLOBALS.get((module, name))
        if found is None:
            allowed = ", ".join(value.name for value in TORCH_GLOBALS.values())
            self._refuse(f"expected one of {allowed}, got {shown(module + '.' + name)}")
        self._stack.append(found)

    def _op_reduce(self) -> None:
        arguments, function = self._pop(), self._pop()
        if not isinstance(function, Global) or isinstance(function.meaning, ml.DType):
            self._refuse(f"expected a callable global, got {_kind(function)}")
        if not isinstance(arguments, tuple):
            self._refuse(f"expected a tuple of arguments, got {_kind(arguments)}")
        try:
            self._stack.append(function.meaning(arguments))
        except ValueError as error:
            self._refuse(f"{function.name}: {error}")

    def _op_build(self) -> None:
        state, target = self._pop(), self._top()
        if not isinstance(target, OrderedDictValue) or not isinstance(state, dict):
            self._refuse(f"expected an OrderedDict and a dict, got {_kind(target)}, {_kind(state)}")

    def _op_binpersid(self) -> None:
        try:
            self._stack.append(_load_storage(self._pop()))
        except ValueError as error:
            self._refuse(f"persistent id: {error}")

    def _op_binunicode(self) -> None:
        (length,) = struct.unpack("<I", self._take(4))
        try:
            self._stack.append(self._take(length).decode("utf-8"))
        except UnicodeDecodeError as error:
            self._refuse(f"expected UTF-8 text, got {error.reason} at its byte {error.start}")

    def _op_long1(self) -> None:
        length = self._take(1)[0]
        if length > _LONGEST_INTEGER:
            self._refuse(f"expected an integer of at most {_LONGEST_INTEGER} bytes, got {length}")
        self._stack.append(int.from_bytes(self._take(length), "little", signed=True))


def _push(make: Callable[[], object]) -> Callable[[PickleMachine], None]:
    return lambda machine: machine._stack.append(make())


def _push_integer(size: int, signed: bool = False) -> Callable[[PickleMachine], None]:
    return lambda machine: machine._stack.append(
        int.from_bytes(machine._take(size), "little", signed=signed)
    )


def _push_tuple(count: int) -> Callable[[PickleMachine], None]:
    return lambda machine: machine._stack.append(
        tuple([machine._pop() for _ in range(count)][::-1])
    )


def _memo(step: Callable[[PickleMachine, int], None], size: int) -> Callable[[PickleMachine], None]:
    return lambda machine: step(machine, int.from_bytes(machine._take(size), "little"))


_STOP = 0x2E
_ALLOWED: dict[str, Callable[[PickleMachine], None]] = {
    "PROTO": PickleMachine._op_proto,
    "MARK": lambda machine: machine._marks.append(len(machine._stack)),
    "GLOBAL": PickleMachine._op_global,
    "REDUCE": PickleMachine._op_reduce,
    "BUILD": PickleMachine._op_build,
    "BINPERSID": PickleMachine._op_binpersid,
    "BINUNICODE": PickleMachine._op_binunicode,
    "BININT": _push_integer(4, signed=True),
    "BININT1": _push_integer(1),
    "BININT2": _push_integer(2),
    "LONG1": PickleMachine._op_long1,
    "NEWTRUE": _push(lambda: True),
    "NEWFALSE": _push(lambda: False),
    "NONE": _push(lambda: None),
    "EMPTY_DICT": _push(dict),
    "EMPTY_LIST": _push(list),
    "EMPTY_TUPLE": _push(tuple),
    "TUPLE": lambda machine: machine._stack.append(tuple(machine._pop_to_mark())),
    "TUPLE1": _push_tuple(1),
    "TUPLE2": _push_tuple(2),
    "TUPLE3": _push_tuple(3),
    "SETITEM": lambda machine: machine._set_items([machine._pop(), machine._pop()][::-1]),
    "SETITEMS": lambda machine: machine._set_items(machine._pop_to_mark()),
    "APPEND": lambda machine: machine._extend([machine._pop()]),
    "APPENDS": lambda machine: machine._extend(machine._pop_to_mark()),
    "BINPUT": _memo(PickleMachine._put, 1),
    "LONG_BINPUT": _memo(PickleMachine._put, 4),
    "BINGET": _memo(PickleMachine._get, 1),
    "LONG_BINGET": _memo(PickleMachine._get, 4),
}
_HANDLERS = {code: _ALLOWED[name] for code, name in _OPCODES.items() if name in _ALLOWED}
