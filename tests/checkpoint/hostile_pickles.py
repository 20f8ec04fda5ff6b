"""Pickle programs that must be refused, and what the refusal must name."""

import struct

from tests.support.pth_writer import (
    ORDERED_DICT,
    dict_program,
    global_name,
    integer,
    storage_id,
    tensor_call,
    text,
)

START = b"\x80\x02"
SYSTEM = global_name("os", "system")
CALL = b"(" + text("touch /tmp/owned") + b"tR."
DICT_CLASS = global_name("collections", "OrderedDict")
FLOAT = global_name("torch", "FloatStorage")
TENSOR = tensor_call(storage_id("FloatStorage", "0", 1), 0, [1], [1])
PAIR = text("a") + text("b")

# Modules and names that a program calls by GLOBAL.
GLOBALS = [
    ("os", "system"),
    ("builtins", "eval"),
    ("pkgutil", "resolve_name"),
    ("torch", "load"),
    ("torch.storage", "_load_from_bytes"),
    ("torch._utils", "_rebuild_wrapper_subclass"),
    ("collections", "OrderedDict.__class__"),
    ("evil", "OrderedDict"),  # the module of an allowed name
    ("torch._utils._rebuild_tensor_v2", ""),  # an allowed name with its dot moved
    ("collections", "OrderedDict "),
    ("os\x1b[2J", "system"),
]
FROM_MEMO = SYSTEM + b"q\x000" + text("x") + b"h\x00" + CALL
# P1: name, which begins with the opcode that is refused -> (program, words of the error)
CODE: dict[str, tuple[bytes, str]] = {
    **{
        f"GLOBAL {m}.{n}": (START + global_name(m, n) + CALL, repr(f"{m}.{n}"))
        for m, n in GLOBALS
    },
    "GLOBAL for REDUCE from the memo": (START + FROM_MEMO, "'os.system'"),
    "STACK_GLOBAL": (START + text("os") + text("system") + b"\x93" + CALL, "'os.system'"),
    "STACK_GLOBAL of numbers": (START + b"K\x01K\x02\x93.", "at byte 6: "),
    "INST": (START + b"(" + text("id") + b"ios\nsystem\n.", "'os.system'"),
    "OBJ": (START + b"(" + DICT_CLASS + b"o.", "at byte 28"),
    "NEWOBJ": (START + DICT_CLASS + b")\x81.", "at byte 28"),
    "NEWOBJ_EX": (START + DICT_CLASS + b")}\x92.", "at byte 29"),
    "EXT1": (START + b"\x82\x01.", "at byte 2"),
    "EXT4": (START + b"\x84\x01\x00\x00\x00.", "at byte 2"),
    "PERSID": (START + b"Pos.system\n.", "at byte 2"),
    "REDUCE of a storage class": (START + FLOAT + b")R.", "torch.FloatStorage"),
    "REDUCE of text": (START + text("os.system") + b")R.", "got 'os.system'"),
    "REDUCE of a tensor": (START + TENSOR + b")R.", "type TensorReference"),
    "REDUCE without a tuple": (START + DICT_CLASS + b"]R.", "a list"),
    "REDUCE of OrderedDict with arguments": (
        START + DICT_CLASS + b"(]tR.",
        "OrderedDict(), got 1",
    ),
    "BINPUT of an index again": (
        START + DICT_CLASS + b"q\x00" + FLOAT + b"q\x00.",
        "memo index",
    ),
    "MEMOIZE": (START + DICT_CLASS + b"\x94.", "at byte 27"),
    "BUILD of a class": (START + DICT_CLASS + b"}b.", "collections.OrderedDict"),
    "PROTO 3": (b"\x80\x03N.", "at byte 0: expected protocol 2 at byte 0, got 3"),
    "PROTO 4": (b"\x80\x04}.", "got 4"),
    "PROTO in the middle": (START + b"}\x80\x02.", "at byte 3"),
    "PROTO twice": (
        START + START + b"N.",
        "PROTO at byte 2: expected protocol 2 at byte 0, got 2",
    ),
    "DUP": (START + b"}2.", "at byte 3"),
    "BYTEARRAY8": (START + b"\x96" + struct.pack("<Q", 1 << 40), "at byte 2"),
    "byte 0xff": (START + b"\xff.", "byte 0xff at byte 2"),
}

# P2: containers that are none
CONTAINERS: dict[str, bytes] = {
    "BUILD on a tensor": START + TENSOR + b"}b.",
    "BUILD with a list": START + ORDERED_DICT + b"]b.",
    "SETITEM on a tensor": START + TENSOR + PAIR + b"s.",
    "SETITEM on a list": START + b"]" + PAIR + b"s.",
    "SETITEMS on a tuple": START + b")(" + PAIR + b"u.",
    "SETITEMS of an odd number": START + b"}(" + text("a") + b"u.",
    "SETITEM with an int as key": START + b"}K\x01K\x02s.",
    "SETITEM with a tuple as key": START + b"})K\x02s.",
    "the same key twice": START + b"}(" + (text("a") + b"K\x01") * 2 + b"u.",
    "APPEND on a dict": START + b"}K\x01a.",
    "APPENDS on a tensor": START + TENSOR + b"(K\x01e.",
}

# P3: programs that end too early or too late, or take what is not there
DAMAGED: dict[str, bytes] = {
    "empty": b"",
    "no STOP": START + b"}",
    "bytes after STOP": START + b"}..",
    "two values left": START + b"}}.",
    "a mark left": START + b"}(.",
    "STOP on nothing": START + b".",
    "tuple of nothing": START + b"\x85.",
    "tuple across a mark": START + b"K\x01(K\x02\x86.",
    "TUPLE without a mark": START + b"K\x01t.",
    "SETITEMS without a mark": START + b"}u.",
    "SETITEM on nothing": START + b"s.",
    "BINGET of an unset index": START + b"h\x05.",
    "LONG_BINGET of an unset index": START + b"j\xff\xff\xff\xff.",
    "BINPUT of nothing": START + b"q\x00.",
    "GLOBAL without an end": START + b"cos",
    "GLOBAL with one line": START + b"cos\nsystem",
    "not UTF-8": START + b"X\x02\x00\x00\x00\xff\xfe.",
    "a surrogate": START + text("\ud800") + b".",
}

DEEP_TUPLE = b")" + b"\x85" * 100_000
DEEP_KEY = text("storage") + FLOAT + DEEP_TUPLE + text("cpu") + b"K\x01"
MEMO = b"".join(b"}r" + struct.pack("<I", index) for index in range((1 << 20) // 6))
# P4: programs that ask for much
GREEDY: dict[str, bytes] = {
    "text of 4 GiB": START + b"X\xff\xff\xff\xff.",
    "text of 2 GiB": START + b"X\xff\xff\xff\x7fabc.",
    "long of 255 bytes": START + b"\x8a\xff" + b"\x7f" * 255 + b".",
    "LONG4 of 2 GiB": START + b"\x8b\xff\xff\xff\x7f.",
    "memo index 2^32-1": START + b"}r\xff\xff\xff\xff.",
    "10^6 nested tuples": START + b")" + b"\x85" * (1 << 20) + b".",
    "10^5 nested tuples": START + DEEP_TUPLE + b".",
    "10^5 nested tuples as storage key": START + b"(" + DEEP_KEY + b"tQ.",
    "10^5 nested lists": START + b"]" * 100_000 + b"a" * 99_999 + b".",
    "10^6 marks": START + b"(" * ((1 << 20) - 3) + b".",
    "10^6 empty texts": START + text("") * ((1 << 20) // 5) + b".",
    "dicts kept by the memo": START + MEMO,
    "a dict in itself": START + b"}q\x00" + text("a") + b"h\x00s.",
    "a list in itself": START + b"]q\x00h\x00a.",
    "GLOBAL of 1 MiB": START + b"c" + b"a" * (1 << 20) + b"\n",
    "a million ints": START + b"(" + b"K\x01" * ((1 << 20) // 2 - 4) + b"t.",
}


def storage_program(**changes: bytes) -> bytes:
    """Form a valid program of one tensor, with parts of its persistent id changed."""
    parts = {
        "tag": text("storage"), "storage": FLOAT, "key": text("0"), "device": text("cpu"),
        "count": integer(6),
    } | changes  # fmt: skip
    storage = b"(" + b"".join(parts.values()) + b"tQ"
    return dict_program({"a": tensor_call(storage, 0, [2, 3], [3, 1])})
