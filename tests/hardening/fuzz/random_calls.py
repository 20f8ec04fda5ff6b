"""Make random calls of `ml`: `python -m tests.hardening.fuzz.random_calls --calls N
--seed S`.

Each call is an op, a method or a constructor with arguments of its kinds, some of them
wrong: shapes with zeros, strides, every dtype and bit pattern, sizes that no memory
holds. It must give a result or an error of the package. A child process makes the calls
and writes the number of each before it begins: a signal is reported with its call, and
another child goes on behind it. A call depends on the seed and its number alone: `--first
K --calls 1` makes call K again.
"""

import argparse
import copy
import inspect
import operator
import pickle
import random
import resource
import signal
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from src import ml
from src.ml.op import OPS

MOST_BYTES = 6 << 30
MOST_ELEMENTS = 1 << 20
SECONDS_PER_CALL = 60
FINDINGS_PER_RUN = 20
CHILD = ("-m", "tests.hardening.fuzz.random_calls")
# Python's own refusal of operands, of arguments to `range` or of `int(complex)`.
PYTHONS = ("unsupported operand", "not supported between", "multiply sequence", "concat")

SIZES = (0, 1, 1, 2, 3, 4, 5, 8, 16, 33)
HUGE = (2**31, 2**40, 2**62, 2**63, 2**64, 10**400, -(2**63), -(2**70))
NUMBERS = (
    *(0, 1, -1, 2, 0.5, -3.0, 1e-45, 1e39, float("nan"), float("inf"), 1j),
    *(np.float32(2.5), np.int64(3), np.float64(1e300), 255, -129, 2**31),
)
WRONG: tuple[Any, ...] = (
    *(None, True, "a", "float32", b"x", (), [], [[1], [1, 2]], {}, object(), 1.5, 1j),
    *(np.float32, np.ones(3), np.ma.masked_array([1.0], [True]), np.array("a")),
    *(ml.float32, ml.nf4, ..., slice(0, 1), float, np.array(None), ml.Tensor),
    *(range(3), -1, 7, *HUGE),
)
BUFFERS = (b"", bytes(7), bytearray(300), np.ones(9), None, "a")
ARRAYS = (*WRONG, np.zeros(3, ">f4"), np.zeros((2, 0, 3)), np.array("2000", "M8[Y]"))
OPERATORS: dict[str, Callable[..., Any]] = {
    f"__{name}__": getattr(operator, f"__{name}__")
    for name in (
        "add",
        "sub",
        "mul",
        "truediv",
        "pow",
        "matmul",
        "neg",
        "abs",
        "lt",
        "le",
        "gt",
    )
} | {
    name: getattr(operator, name)
    for name in ("__ge__", "__eq__", "__ne__", "__getitem__")
}
METHODS = (
    "item",
    "tolist",
    "numpy",
    "copy",
    "contiguous",
    "view_as_complex",
    "view_as_real",
)


class Caller:
    """One random call of a run: it depends on the run's seed and on its number."""

    def __init__(self, seed: int, number: int) -> None:
        self.number = number
        self.random = random.Random(f"{seed} {number}")
        self.shape = self.sizes()
        self.dtype = self.random.choice(ml.DTYPES)
        self.text = ""
        self.is_numpys = False

    def run(self) -> None:
        kind = self.random.random()
        named = dict[str, Any]()
        if kind < 0.72:
            name, function = self.random.choice(list(OPS.items()))
            arguments, named = self.arguments(function)
        elif kind < 0.88:
            name, function = self.random.choice(list(OPERATORS.items()))
            arguments = [self.tensor()]
            if name == "__getitem__":
                arguments.append(self.index())
            elif name not in ("__neg__", "__abs__"):
                arguments.append(self.operand())
                if self.random.random() < 0.3:
                    arguments.reverse()
        else:
            name, function, arguments = self.other()
        # Next to an array an operator is NumPy's, and so are its errors.
        self.is_numpys = name in OPERATORS and any(
            isinstance(x, np.ndarray) for x in arguments
        )
        self.text = f"{name}({', '.join(map(_shown, arguments))}, {named})"
        result = function(*arguments, **named)
        for x in result if isinstance(result, tuple) else (result,):
            if (
                isinstance(x, ml.Tensor) and x.size < MOST_ELEMENTS
            ):  # more only with strides of 0
                repr(x), str(x), x.numpy(), pickle.loads(pickle.dumps(x))

    def other(self) -> tuple[str, Callable[..., Any], list[Any]]:
        choose = self.random.choice
        tensor = self.tensor()
        dtype = self.kind("dtype")
        shape = self.kind("shape")
        number = self.kind("dim")
        buffer = choose(BUFFERS)
        offset = choose((0, 1, 4, -4, *WRONG))
        block = choose((ml.nf4, ml.int8_block, self.wrong()))
        double = choose((False, True))
        sizes = [choose((1, 2, 4, 17, *WRONG)) for _ in range(3)]
        strides = choose(((), (4,), (4, 4), (-4,), (2**62,), number))
        method = choose(METHODS)
        others = (
            ("Tensor.empty", ml.Tensor.empty, [shape, dtype]),
            ("from_buffer", ml.Tensor.from_buffer, [buffer, dtype, shape, None, offset]),
            ("from_numpy", ml.Tensor.from_numpy, [choose(ARRAYS)]),
            ("quantize", _quantized, [tensor, block, double]),
            ("KeyValueCache", ml.KeyValueCache, [*sizes, dtype]),
            ("deepcopy", copy.deepcopy, [tensor]),
            ("Tensor", ml.Tensor, [tensor.storage, shape, strides, dtype, "", number]),
            ("Generator", ml.Generator, [number]),
            (method, getattr(ml.Tensor, method), [tensor]),
        )
        return choose(others)

    def arguments(self, function: Callable[..., Any]) -> tuple[list[Any], dict[str, Any]]:
        """Choose arguments by the names and annotations of the parameters."""
        arguments: list[Any] = []
        named: dict[str, Any] = {}
        is_wrong = self.random.random() < 0.25
        for name, parameter in inspect.signature(function).parameters.items():
            if parameter.default is not parameter.empty and self.random.random() < 0.5:
                continue
            value = self.argument(name, str(parameter.annotation))
            if is_wrong and self.random.random() < 0.4:
                value = self.wrong()
            if parameter.kind is parameter.VAR_POSITIONAL:
                arguments += value if isinstance(value, tuple) else (value,)
            elif parameter.default is parameter.empty:
                arguments.append(value)
            else:
                named[name] = value
        return arguments, named

    def argument(self, name: str, annotation: str) -> Any:
        if name in ("ids", "index"):
            return self.tensor(self.random.choice((ml.int32, ml.int64)), small=True)
        if "Sequence" in annotation and "Tensor" in annotation:
            return [self.tensor() for _ in range(self.random.randrange(4))]
        if "KeyValueCache" in annotation:
            positions, heads, half = (self.random.choice((1, 2, 4, 17)) for _ in range(3))
            dtype = self.random.choice((ml.bfloat16, ml.float32))
            return ml.KeyValueCache(positions, heads, 2 * half, dtype)
        if name == "sinks" and self.random.random() < 0.8:
            first = self.random.randrange(2)  # of softmax, or of attention
            sizes = self.shape[first : first + 1]
            bits = np.random.default_rng(self.random.randrange(2**32)).bytes(4)
            return ml.Tensor.from_numpy(np.resize(np.frombuffer(bits, np.float32), sizes))
        if name == "condition":
            return self.tensor(ml.bool_)
        if "Quantized" in annotation and self.random.random() < 0.3:
            block = self.random.choice((ml.nf4, ml.int8_block))
            return ml.quantize(self.tensor(ml.float32), block)
        if "Tensor" in annotation or name in ("self", "data"):
            has_numbers = (
                "complex" in annotation or "float" in annotation or name == "data"
            )
            return self.operand() if has_numbers else self.tensor()
        if name in ("shape", "sizes", "normalized_shape"):
            return self.kind("shape")
        if "DType" in annotation:
            return self.kind("dtype")
        if name in (
            "value",
            "min",
            "max",
            "eps",
            "rtol",
            "atol",
            "start",
            "stop",
            "step",
        ):
            return self.random.choice(NUMBERS)
        if name in ("keepdim", "descending", "largest", "equal_nan"):
            return self.random.random() < 0.5
        if name in ("pairs", "approximate"):
            return self.random.choice(("interleaved", "halves", "none", "tanh"))
        if name == "generator":
            return ml.Generator(1)
        return self.kind("dims" if "Sequence" in annotation or name == "dims" else "dim")

    def kind(self, kind: str) -> Any:
        if self.random.random() < 0.05:
            return self.wrong()
        if kind == "dtype":
            return self.random.choice((*ml.DTYPES, self.dtype, "bfloat16", "float32"))
        if kind == "shape":
            return self.shape if self.random.random() < 0.5 else self.sizes()
        if kind == "dims" and self.random.random() < 0.5:
            return tuple(
                self.random.randrange(-3, 3) for _ in range(self.random.randrange(4))
            )
        return self.random.randrange(-3, 4)

    def sizes(self) -> tuple[int, ...]:
        return tuple(self.random.choice(SIZES) for _ in range(self.random.randrange(5)))

    def tensor(self, dtype: Any = None, *, small: bool = False) -> ml.Tensor:
        """Make a tensor of random bits, of the shape and dtype of the call or of
        others.
        """
        if dtype is None:
            other = self.random.choice(ml.DTYPES)
            dtype = self.dtype if self.random.random() < 0.8 else other
        shape = self.shape if self.random.random() < 0.6 else self.sizes()
        if self.random.random() < 0.2 and len(shape) > 1:
            shape = (*shape[:-2], shape[-1], shape[-2])
        generator = np.random.default_rng(self.random.randrange(2**32))
        layout = self.random.randrange(6)
        wide = (*shape[:-1], 2 * shape[-1]) if layout == 1 and shape else shape
        if small or dtype.kind in ("int", "bool"):
            array = generator.integers(0, 2, wide).astype(dtype.numpy_dtype)
        elif self.random.random() < 0.5:
            array = generator.standard_normal(wide).astype(dtype.numpy_dtype)
        else:
            bits = generator.bytes(int(np.prod(wide)) * dtype.itemsize)
            array = np.frombuffer(bits, dtype.numpy_dtype).reshape(wide)
        if layout == 1 and shape:
            return ml.Tensor.from_numpy(array)[..., ::2]
        if layout == 2 and shape:
            return ml.Tensor.from_numpy(array[::-1])
        if layout == 3 and len(shape) > 1:
            return ml.Tensor.from_numpy(
                np.ascontiguousarray(array.swapaxes(0, -1)).swapaxes(0, -1)
            )
        if layout == 4:
            data = b"\0" + np.ascontiguousarray(array).tobytes()
            return ml.Tensor.from_buffer(
                data, dtype, shape, offset=1 if array.size else 0
            )
        if layout == 5 and array.size:
            return ml.Tensor.from_numpy(np.broadcast_to(array.flat[0], shape))
        return ml.Tensor.from_numpy(array)

    def operand(self) -> Any:
        """Choose an operand: mostly a tensor, sometimes a number or something else."""
        chance = self.random.random()
        if chance < 0.6:
            return self.tensor()
        return self.random.choice(NUMBERS) if chance < 0.9 else self.wrong()

    def index(self) -> Any:
        first = self.random.randrange(-3, 3)
        slices = (slice(None), slice(0, 1), slice(-2, None), slice(1, None, 2))
        parts = (first, *slices[:2], ..., *slices[2:], self.wrong())
        chosen = [self.random.choice(parts) for _ in range(self.random.randrange(4))]
        return chosen[0] if len(chosen) == 1 else tuple(chosen)

    def wrong(self) -> Any:
        """Choose something that is probably of a wrong type, or out of range."""
        return self.random.choice(WRONG)


def _quantized(x: ml.Tensor, dtype: ml.BlockDType, double: bool) -> None:
    q = ml.quantize(x, dtype, double)
    repr(q), str(q), pickle.loads(pickle.dumps(q)), q.dequantize("bfloat16")


def _shown(x: Any) -> str:
    if isinstance(x, ml.Tensor):
        return f"<{list(x.shape)} strides {list(x.strides)} {x.dtype}>"
    return f"{x!r:.60}"


def make_calls(first: int, calls: int, seed: int) -> None:
    """Make calls in this process, and write what is found to standard output."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    warnings.simplefilter("error")
    ml.set_num_threads(2)
    for number in range(first, first + calls):
        print(number, flush=True)
        signal.alarm(SECONDS_PER_CALL)  # ends the process
        caller = Caller(seed, number)
        try:
            caller.run()
        except ml.LlamaBoltsError:
            pass
        except Exception as error:  # noqa: BLE001 (what is undeclared is the finding)
            if isinstance(error, TypeError) and any(
                text in str(error) for text in PYTHONS
            ):
                continue
            if caller.is_numpys:
                continue
            frame = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{frame.filename.rpartition('/')[2]}:{frame.lineno}"
            text = f"{type(error).__name__} at {where}: {error}: {caller.text}".replace(
                "\n", " "
            )
            print(f"finding {number} {text:.600}", flush=True)


def run(calls: int, seed: int, first: int = 0) -> list[str]:
    """Make calls in child processes; return the signals and undeclared exceptions."""
    findings: list[str] = []
    last = first + calls
    while first < last and len(findings) < FINDINGS_PER_RUN:
        command = [sys.executable, "-X", "faulthandler", *CHILD, "--child"]
        command += [
            "--calls",
            str(last - first),
            "--seed",
            str(seed),
            "--first",
            str(first),
        ]
        child = subprocess.run(command, capture_output=True, text=True, check=False)
        lines = child.stdout.splitlines()
        findings += [line for line in lines if line.startswith("finding")]
        numbers = [int(line) for line in lines if line.isdigit()]
        if child.returncode == 0:
            break
        first = numbers[-1] + 1 if numbers else last
        findings.append(
            f"finding {first - 1} exit code {child.returncode}: {child.stderr[-2000:]}"
        )
    return findings


def main() -> int:
    """Make the calls, print what was found, and return 1 if there was anything."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.hardening.fuzz.random_calls", description=__doc__
    )
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first call")
    parser.add_argument(
        "--child", action="store_true", help="make the calls in this process"
    )
    arguments = parser.parse_args()
    if arguments.child:
        make_calls(arguments.first, arguments.calls, arguments.seed)
        return 0
    findings = run(arguments.calls, arguments.seed, arguments.first)
    print("\n".join(findings))
    print(f"{arguments.calls} calls, seed {arguments.seed}: {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
