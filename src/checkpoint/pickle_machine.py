"""A pickle interpreter that can only build data.

A pickle is a program for a small stack machine, and Python's own machine lets the program
import and call anything. This machine executes only the opcodes that `torch.save` writes
(protocol 2). It resolves globals through a table of six inert replacements, and calls
nothing else. It does not import or recurse, and it creates at most one object per opcode,
up to a limited number of opcodes.

The pickle of a state dict contains the storage, offset, size and stride of each tensor.
The result describes the tensors; `torch_pth` validates it and creates them.

Source: CPython's `Lib/pickletools.py`, which specifies each opcode (protocols 0 to 5);
`Lib/pickle.py` for the output of the pickler; PyTorch 2.13, `torch/_utils.py`
(`_rebuild_tensor_v2`, `_rebuild_parameter`) and `torch/serialization.py` (`persistent_id`
of `_save`).
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pickletools import opcodes  # used for opcode names; it does not run pickles

from .. import ml
from ..untrusted import described, is_integer, shown
from .errors import CheckpointError

# Maximum number of executed opcodes. A 405B model in one file has 1,138 tensors, with
# about 50 opcodes each. The limit also bounds the memory use of a hostile program, which
# takes about 100 bytes per opcode.
MOST_OPCODES = 1 << 17

_LONGEST_LINE = 256
_LONGEST_INTEGER = 8
_PROTOCOL = 2
_LARGEST_SIZE = 1 << 48
_MOST_DIMENSIONS = 8
_LONGEST_KEY = 9

# The name of each opcode, such as `GLOBAL`, or `byte 0xff` for a byte that is not one.
_OPCODES = {code: f"byte 0x{code:02x}" for code in range(0x100)}
_OPCODES |= {ord(opcode.code): opcode.name for opcode in opcodes}


@dataclass(frozen=True, slots=True)
class Global:
    """An allowed global, with the value that replaces it."""

    name: str
    # For a torch storage class, the dtype of its elements. For a function, a replacement
    # that checks the argument tuple and returns inert data.
    meaning: ml.DType | Callable[[tuple[object, ...]], object]


@dataclass(frozen=True, slots=True)
class StorageReference:
    """A storage: the record `data/<key>`, with `element_count` elements of `dtype`."""

    dtype: ml.DType
    key: str
    element_count: int


@dataclass(frozen=True, slots=True)
class TensorReference:
    """A strided view of a storage. As in PyTorch, offset and strides count elements."""

    storage: StorageReference
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def _kind(value: object) -> str:
    return value.name if isinstance(value, Global) else described(value)


def _load_storage(persistent_id: object) -> StorageReference:
    """Convert a persistent id `("storage", class, key, device, count)`."""
    match persistent_id:
        case ("storage", Global(meaning=ml.DType() as dtype), str(key), str(), count):
            if not (key.isascii() and key.isdigit()) or len(key) > _LONGEST_KEY:
                raise ValueError(f"expected a record number as key, got {shown(key)}")
            return StorageReference(dtype, key, _size(count, "element count"))
    raise ValueError(
        "expected ('storage', a storage class, key, device, count), got other values"
    )


def _size(value: object, key: str) -> int:
    if not is_integer(value, 0, _LARGEST_SIZE):
        raise ValueError(
            f"{key}: expected an integer in 0..{_LARGEST_SIZE}, got {_kind(value)}"
        )
    return value


def _sizes(value: object, key: str) -> tuple[int, ...]:
    if not isinstance(value, tuple) or len(value) > _MOST_DIMENSIONS:
        raise ValueError(
            f"{key}: expected at most {_MOST_DIMENSIONS} integers, got other values"
        )
    return tuple(_size(item, key) for item in value)


def _rebuild_tensor(arguments: tuple[object, ...]) -> TensorReference:
    """Replace `_rebuild_tensor_v2` with six arguments; a seventh would change values."""
    match arguments:
        case (StorageReference() as storage, offset, size, stride, bool(), hooks) if (
            _none(hooks)
        ):
            shape = _sizes(size, "size")
            strides = _sizes(stride, "stride")
            if len(shape) != len(strides):
                raise ValueError(
                    f"expected {len(shape)} strides as sizes, got {len(strides)}"
                )
            return TensorReference(storage, _size(offset, "offset"), shape, strides)
    rule = (
        "_rebuild_tensor_v2(a storage, offset, size, stride, a bool, an empty "
        "OrderedDict)"
    )
    raise ValueError(f"expected {rule}, got {len(arguments)} other arguments")


def _rebuild_parameter(arguments: tuple[object, ...]) -> TensorReference:
    """Replace `_rebuild_parameter(data, requires_grad, hooks)` by returning `data`."""
    match arguments:
        case (TensorReference() as tensor, bool(), hooks) if _none(hooks):
            return tensor
    rule = "_rebuild_parameter(a tensor, a bool, an empty OrderedDict)"
    raise ValueError(f"expected {rule}, got {len(arguments)} other arguments")


def _none(hooks: object) -> bool:
    return isinstance(hooks, OrderedDict) and not hooks


def _ordered_dict(arguments: tuple[object, ...]) -> OrderedDict[str, object]:
    if arguments:
        raise ValueError(
            f"expected collections.OrderedDict(), got {len(arguments)} arguments"
        )
    return OrderedDict[str, object]()


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
"""The six allowed globals, keyed by (module, name)."""


class PickleMachine:
    """Runs one pickle program, which must end with STOP.

    The other methods raise ValueError with a message `expected X, got Y`. `run` converts
    it to a CheckpointError that includes the label and the position.
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
        """Execute the program and return the value on top of the stack at STOP."""
        try:
            for _ in range(MOST_OPCODES):
                self._opcode_at = self._position
                if self._position == len(self._program):
                    raise ValueError("expected STOP, got the end of the data")
                name = _OPCODES[self._take(1)[0]]
                if name == "STOP":
                    return self._stop()
                if name in _VALUES:
                    self._stack.append(_VALUES[name](self))
                elif name in _STEPS:
                    _STEPS[name](self)
                else:
                    expected = "expected an opcode that torch.save writes"
                    raise ValueError(f"{expected}, got {name}{self._requested(name)}")
            raise ValueError(f"expected at most {MOST_OPCODES} opcodes, got more")
        except ValueError as error:
            at = self._opcode_at
            name = _OPCODES[self._program[at]] if at < len(self._program) else "end"
            raise CheckpointError(
                f"{self._label}: {name} at byte {at}: {error}"
            ) from None

    def _requested(self, name: str) -> str:
        """Describe the global that a rejected opcode refers to, for an error message."""
        values: list[object] = [self._line(), self._line()] if name == "INST" else []
        if name == "STACK_GLOBAL":
            values = self._stack[-2:]
        texts = [each[:200] for each in values if isinstance(each, str)]
        return f" for {shown('.'.join(texts))}" if len(texts) == 2 else ""

    # Reading the program

    def _take(self, count: int) -> bytes:
        left = len(self._program) - self._position
        if count > left:
            raise ValueError(f"expected {count} bytes, got {left} to the end of the data")
        self._position += count
        return self._program[self._position - count : self._position]

    def _integer(self, size: int, signed: bool = False) -> int:
        return int.from_bytes(self._take(size), "little", signed=signed)

    def _line(self) -> str:
        stop = self._program.find(b"\n", self._position, self._position + _LONGEST_LINE)
        if stop < 0:
            raise ValueError(
                f"expected a line of at most {_LONGEST_LINE} bytes, got no end"
            )
        return self._take(stop + 1 - self._position)[:-1].decode("utf-8", "replace")

    def _text(self) -> str:
        try:
            return self._take(self._integer(4)).decode()
        except UnicodeDecodeError as error:
            raise ValueError(
                f"expected UTF-8, got an invalid byte at offset {error.start}"
            ) from None

    # Stack, marks and memo

    def _pop(self) -> object:
        floor = self._marks[-1] if self._marks else 0
        if len(self._stack) <= floor:
            raise ValueError("expected a value on the stack, got none")
        return self._stack.pop()

    def _pops(self, count: int) -> list[object]:
        return [self._pop() for _ in range(count)][::-1]

    def _top(self) -> object:
        value = self._pop()
        self._stack.append(value)
        return value

    def _pop_to_mark(self) -> list[object]:
        if not self._marks:
            raise ValueError("expected a MARK on the stack, got none")
        mark = self._marks.pop()
        values = self._stack[mark:]
        del self._stack[mark:]
        return values

    def _put(self, index: int) -> None:
        # A pickler numbers memo entries from 0 and never reuses an index. Any other
        # program is rejected.
        if index >= MOST_OPCODES or index in self._memo:
            raise ValueError(
                f"expected a new memo index below {MOST_OPCODES}, got {index}"
            )
        self._memo[index] = self._top()

    def _get(self, index: int) -> object:
        if index not in self._memo:
            raise ValueError(f"expected a memo index that was set, got {index}")
        return self._memo[index]

    def _set_items(self, items: list[object]) -> None:
        target = self._top()
        if not isinstance(target, dict) or len(items) % 2:
            got = f"{_kind(target)} and {len(items)} values"
            raise ValueError(
                f"expected a dict to set pairs of key and value in, got {got}"
            )
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, str):
                raise ValueError(f"expected a str as key, got {_kind(key)}")
            if key in target:
                raise ValueError(f"expected each key once, got {shown(key)} twice")
            target[key] = value

    def _extend(self, items: list[object]) -> None:
        target = self._top()
        if not isinstance(target, list):
            raise ValueError(f"expected a list to append to, got {_kind(target)}")
        target.extend(items)

    # Opcodes

    def _stop(self) -> object:
        value = self._pop()
        left = len(self._program) - self._position
        if left or self._stack or self._marks:
            got = f"{len(self._stack) + 1} values and {left} more bytes"
            raise ValueError(f"expected one value and the end of the data, got {got}")
        return value

    def _proto(self) -> None:
        version = self._take(1)[0]
        if version != _PROTOCOL or self._opcode_at != 0:
            raise ValueError(f"expected protocol {_PROTOCOL} at byte 0, got {version}")

    def _global(self) -> Global:
        module = self._line()
        name = self._line()
        global_ = TORCH_GLOBALS.get((module, name))
        if global_ is None:
            allowed = ", ".join(value.name for value in TORCH_GLOBALS.values())
            raise ValueError(
                f"expected one of {allowed}, got {shown(module + '.' + name)}"
            )
        return global_

    def _reduce(self) -> object:
        arguments = self._pop()
        function = self._pop()
        if not isinstance(function, Global) or isinstance(function.meaning, ml.DType):
            raise ValueError(f"expected a callable global, got {_kind(function)}")
        if not isinstance(arguments, tuple):
            raise ValueError(f"expected a tuple of arguments, got {_kind(arguments)}")
        return function.meaning(arguments)

    def _build(self) -> None:
        """Pop and discard the attributes of an OrderedDict."""
        state = self._pop()
        target = self._top()
        if not isinstance(target, OrderedDict) or not isinstance(state, dict):
            got = f"{_kind(target)}, {_kind(state)}"
            raise ValueError(f"expected an OrderedDict and a dict, got {got}")

    def _long1(self) -> int:
        length = self._take(1)[0]
        if length > _LONGEST_INTEGER:
            raise ValueError(f"expected at most {_LONGEST_INTEGER} bytes, got {length}")
        return self._integer(length, signed=True)


# `_VALUES` contains the opcodes that push one value, and `_STEPS` contains all other
# supported opcodes.
_VALUES: dict[str, Callable[[PickleMachine], object]] = {
    "GLOBAL": PickleMachine._global,
    "REDUCE": PickleMachine._reduce,
    "BINPERSID": lambda machine: _load_storage(machine._pop()),
    "BINUNICODE": PickleMachine._text,
    "BININT": lambda machine: machine._integer(4, signed=True),
    "BININT1": lambda machine: machine._integer(1),
    "BININT2": lambda machine: machine._integer(2),
    "LONG1": PickleMachine._long1,
    "NEWTRUE": lambda _: True,
    "NEWFALSE": lambda _: False,
    "NONE": lambda _: None,
    "EMPTY_DICT": lambda _: dict[str, object](),
    "EMPTY_LIST": lambda _: list[object](),
    "EMPTY_TUPLE": lambda _: (),
    "TUPLE": lambda machine: tuple(machine._pop_to_mark()),
    "TUPLE1": lambda machine: tuple(machine._pops(1)),
    "TUPLE2": lambda machine: tuple(machine._pops(2)),
    "TUPLE3": lambda machine: tuple(machine._pops(3)),
    "BINGET": lambda machine: machine._get(machine._integer(1)),
    "LONG_BINGET": lambda machine: machine._get(machine._integer(4)),
}
_STEPS: dict[str, Callable[[PickleMachine], None]] = {
    "PROTO": PickleMachine._proto,
    "MARK": lambda machine: machine._marks.append(len(machine._stack)),
    "BUILD": PickleMachine._build,
    "SETITEM": lambda machine: machine._set_items(machine._pops(2)),
    "SETITEMS": lambda machine: machine._set_items(machine._pop_to_mark()),
    "APPEND": lambda machine: machine._extend(machine._pops(1)),
    "APPENDS": lambda machine: machine._extend(machine._pop_to_mark()),
    "BINPUT": lambda machine: machine._put(machine._integer(1)),
    "LONG_BINPUT": lambda machine: machine._put(machine._integer(4)),
}
