"""A pickle interpreter that can build data and nothing else.

A pickle is a program for a small stack machine, and Python's own machine lets the program import
and call what it likes. This one knows the opcodes that `torch.save` writes (protocol 2), resolves a
global only through a table of inert stand-ins, and calls only those. It imports nothing, recurses
nowhere, and holds no more objects than it has executed opcodes, of which there is a limit.

Source: CPython's `Lib/pickletools.py`, which specifies each opcode; `Lib/pickle.py` for what the
pickler emits.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import NoReturn

from .errors import PickleRefusedError, shown
from .pickle_opcodes import opcode_name
from .pickle_values import Global, GlobalFunction, OrderedDictValue

__all__ = ["MOST_OPCODES", "PickleMachine"]

# 405 B parameters in one file are 1 138 tensors of about 50 opcodes each. The limit also bounds
# the memory of a hostile program: about 100 bytes per opcode.
MOST_OPCODES = 1 << 17

_LONGEST_GLOBAL_LINE = 256
_LONGEST_INTEGER = 8
_PROTOCOL = 2


class PickleMachine:
    """Run one pickle program.

    Args:
        program: the whole pickle, STOP included and nothing after it.
        label: what to call it in errors, for example `model.pth: data.pkl`.
        table: the allowed globals by (module, name).
        load_persistent: turns a persistent id into an inert value; raises ValueError on a bad one.
    """

    def __init__(
        self,
        program: bytes,
        label: str,
        table: Mapping[tuple[str, str], Global],
        load_persistent: Callable[[object], object],
    ) -> None:
        self._program = program
        self._label = label
        self._table = table
        self._load_persistent = load_persistent
        self._position = 0
        self._opcode_at = 0
        self._stack: list[object] = []
        self._marks: list[int] = []
        self._memo: dict[int, object] = {}

    def run(self) -> object:
        """Execute the program up to STOP and return the one value it leaves.

        Raises:
            PickleRefusedError: anything but a well-formed program of allowed opcodes.
        """
        program, end = self._program, len(self._program)
        executed = 0
        while True:
            self._opcode_at = self._position
            executed += 1
            if executed > MOST_OPCODES:
                self._refuse(f"expected at most {MOST_OPCODES} opcodes, got more")
            if self._position >= end:
                self._refuse("expected STOP, got the end of the data")
            code = program[self._position]
            self._position += 1
            if code == _STOP:
                return self._stop()
            handler = _HANDLERS.get(code)
            if handler is None:
                self._refuse_opcode(code)
            handler(self)

    def _refuse(self, reason: str) -> NoReturn:
        at = self._opcode_at
        name = opcode_name(self._program[at]) if at < len(self._program) else "end"
        raise PickleRefusedError(f"{self._label}: {name} at byte {at}: {reason}") from None

    def _refuse_opcode(self, code: int) -> NoReturn:
        """Refuse an opcode outside the allow-list; name the global it is after, if any."""
        wanted = ""
        if code == _INST:
            wanted = f" for {shown(self._line() + '.' + self._line())}"
        elif code == _STACK_GLOBAL and len(self._stack) >= 2:
            module, name = self._stack[-2:]
            if isinstance(module, str) and isinstance(name, str):
                wanted = f" for {shown(module[:200] + '.' + name[:200])}"
        self._refuse(f"expected an opcode that torch.save writes, got {opcode_name(code)}{wanted}")

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

    def _set_items(self, target: object, items: list[object]) -> None:
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

    def _append_all(self, target: object, items: list[object]) -> None:
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

    def _op_mark(self) -> None:
        self._marks.append(len(self._stack))

    def _op_global(self) -> None:
        module, name = self._line(), self._line()
        found = self._table.get((module, name))
        if found is None:
            allowed = ", ".join(value.name for value in self._table.values())
            self._refuse(f"expected one of {allowed}, got {shown(module + '.' + name)}")
        self._stack.append(found)

    def _op_reduce(self) -> None:
        arguments, function = self._pop(), self._pop()
        if not isinstance(function, GlobalFunction):
            self._refuse(f"expected a callable global, got {_kind(function)}")
        if not isinstance(arguments, tuple):
            self._refuse(f"expected a tuple of arguments, got {_kind(arguments)}")
        try:
            self._stack.append(function.build(arguments))
        except ValueError as error:
            self._refuse(f"{function.name}: {error}")

    def _op_build(self) -> None:
        state, target = self._pop(), self._top()
        if not isinstance(target, OrderedDictValue) or not isinstance(state, dict):
            self._refuse(f"expected an OrderedDict and a dict, got {_kind(target)}, {_kind(state)}")

    def _op_binpersid(self) -> None:
        try:
            self._stack.append(self._load_persistent(self._pop()))
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

    def _op_setitem(self) -> None:
        value, key = self._pop(), self._pop()
        self._set_items(self._top(), [key, value])

    def _op_setitems(self) -> None:
        items = self._pop_to_mark()
        self._set_items(self._top(), items)

    def _op_append(self) -> None:
        value = self._pop()
        self._append_all(self._top(), [value])

    def _op_appends(self) -> None:
        items = self._pop_to_mark()
        self._append_all(self._top(), items)

    def _op_tuple(self) -> None:
        self._stack.append(tuple(self._pop_to_mark()))


def _kind(value: object) -> str:
    if isinstance(value, Global):
        return value.name
    return f"a value of type {type(value).__name__}"


def _push(make: Callable[[], object]) -> Callable[[PickleMachine], None]:
    """Form the handler of an opcode that pushes a constant or a new empty container."""
    return lambda machine: machine._stack.append(make())


def _push_integer(size: int, signed: bool = False) -> Callable[[PickleMachine], None]:
    def handler(machine: PickleMachine) -> None:
        machine._stack.append(int.from_bytes(machine._take(size), "little", signed=signed))

    return handler


def _push_tuple(count: int) -> Callable[[PickleMachine], None]:
    def handler(machine: PickleMachine) -> None:
        values = [machine._pop() for _ in range(count)]
        machine._stack.append(tuple(reversed(values)))

    return handler


def _memo(step: Callable[[PickleMachine, int], None], size: int) -> Callable[[PickleMachine], None]:
    return lambda machine: step(machine, int.from_bytes(machine._take(size), "little"))


_STOP, _INST, _STACK_GLOBAL = 0x2E, 0x69, 0x93

_HANDLERS: dict[int, Callable[[PickleMachine], None]] = {
    0x80: PickleMachine._op_proto,
    ord("("): PickleMachine._op_mark,
    ord("c"): PickleMachine._op_global,
    ord("R"): PickleMachine._op_reduce,
    ord("b"): PickleMachine._op_build,
    ord("Q"): PickleMachine._op_binpersid,
    ord("X"): PickleMachine._op_binunicode,
    ord("J"): _push_integer(4, signed=True),
    ord("K"): _push_integer(1),
    ord("M"): _push_integer(2),
    0x8A: PickleMachine._op_long1,
    0x88: _push(lambda: True),
    0x89: _push(lambda: False),
    ord("N"): _push(lambda: None),
    ord("}"): _push(dict),
    ord("]"): _push(list),
    ord(")"): _push(tuple),
    ord("t"): PickleMachine._op_tuple,
    0x85: _push_tuple(1),
    0x86: _push_tuple(2),
    0x87: _push_tuple(3),
    ord("s"): PickleMachine._op_setitem,
    ord("u"): PickleMachine._op_setitems,
    ord("a"): PickleMachine._op_append,
    ord("e"): PickleMachine._op_appends,
    ord("q"): _memo(PickleMachine._put, 1),
    ord("r"): _memo(PickleMachine._put, 4),
    ord("h"): _memo(PickleMachine._get, 1),
    ord("j"): _memo(PickleMachine._get, 4),
}
