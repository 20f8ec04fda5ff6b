"""A feed-forward that consists of experts, of which each token uses a few.

A pass sorts its pairs of a token and an expert by expert, so that each expert's matrices
are read once for all tokens that use the expert. Each element of a result has the bits of
`linear_transformation`, and the results of a token are added in the order of the experts'
numbers. Therefore, the result of a token does not depend on the other tokens of the pass.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np

from .. import kernels
from ..checks import (
    check_float,
    check_kind,
    describe_operands,
    float_dtype,
    kernel_operand,
)
from ..dtype import DType, bfloat16, float32, int32
from ..errors import DTypeError, ShapeError, TensorError
from ..kernels import ffi, lib
from ..layout import Shape
from ..op import Operand, op
from ..quantized import Weight
from ..tensor import Tensor, allocate
from .elementwise import clamped_swiglu, swiglu
from .linear import fits_product, linear_transformation, linear_transformations
from .reduction import softmax

Activation: TypeAlias = Literal["swiglu", "clamped_swiglu"]
# The number of the C op, and the op.
_ACTIVATIONS = {
    "swiglu": (lib.OP_SWIGLU, swiglu),
    "clamped_swiglu": (lib.OP_CLAMPED_SWIGLU, clamped_swiglu),
}
_MOST_PAIRS: int = lib.EXPERT_PAIRS
_PANEL: int = lib.PANEL_TOKENS


class ExpertWeights(Operand):
    """The same matrix of all experts in a layer, such as the gate matrices.

    The matrices are not copied. They may be views of one stacked tensor.

    Args:
        weights: A weight [out, in] for each expert, all of the same shape.
        biases: A bias [out] for each expert, or None.
        name: The name of the stack, for messages and traces.

    Raises:
        ShapeError: If there are no weights, or if the shapes differ.
    """

    __slots__ = ("_alive", "_biases", "_matrix", "_name", "_weights")

    is_tensor = True

    def __init__(
        self,
        weights: Sequence[Weight],
        biases: Sequence[Tensor] | None = None,
        name: str = "",
    ) -> None:
        shapes = {weight.shape for weight in weights}
        if len(shapes) != 1 or len(weights[0].shape) != 2:
            rule = "weights must be matrices of one shape"
            raise ShapeError(f"[ExpertWeights] {rule}: {sorted(map(list, shapes))}")
        if biases is not None and len(biases) != len(weights):
            lengths = f"{len(biases)} != {len(weights)}"
            text = f"len(biases) must equal len(weights): {lengths}"
            raise ShapeError(f"[ExpertWeights] {text}")
        for bias in biases or ():
            if bias.shape != weights[0].shape[:1]:
                text = f"{list(bias.shape)} != {list(weights[0].shape[:1])}"
                rule = "bias.shape must equal weight.shape[:1]"
                raise ShapeError(f"[ExpertWeights] {rule}: {text}")
        self._weights = tuple(weights)
        self._biases = (None,) * len(weights) if biases is None else tuple(biases)
        self._name = name
        self._alive: list[Any] = []  # what the C struct refers to
        self._matrix = self._c_matrix()

    def _c_matrix(self) -> Any:
        """Return the C `ExpertMatrix`, or None if the experts differ in their dtypes."""
        kinds = {(weight._dtype, weight._activations) for weight in self._weights}
        bias_dtypes = {bias._dtype for bias in self._biases if bias is not None}
        if len(kinds) > 1 or len(bias_dtypes) > 1:
            return None
        structs = []
        for weight in self._weights:
            if isinstance(weight, Tensor):
                weight = weight.contiguous()
                structs.append(kernels.weight((weight._pointer,), weight._dtype.code))
            else:
                structs.append(weight._weight)
            self._alive.append(weight)
        weights = ffi.new("Weight[]", structs)
        biases = ffi.NULL
        bias_code = 0
        if bias_dtypes:
            own = [bias.contiguous() for bias in self._biases if bias is not None]
            biases = ffi.new("void *[]", [kernels.pointer(x._pointer) for x in own])
            bias_code = own[0]._dtype.code
            self._alive += own
        self._alive += [weights, biases]
        rows, columns = self._weights[0].shape
        return ffi.new("ExpertMatrix *", (weights, biases, rows, columns, bias_code))

    @property
    def shape(self) -> Shape:
        """The number of experts, and the shape of a matrix: [E, out, in]."""
        return (len(self._weights), *self._weights[0].shape)

    @property
    def ndim(self) -> int:
        """The number of dimensions, which is 3."""
        return len(self.shape)

    @property
    def dtype(self) -> Any:
        """The dtype of the first expert's weight."""
        return self._weights[0].dtype

    @property
    def name(self) -> str:
        """The name shown in messages and traces."""
        return self._name

    @property
    def nbytes(self) -> int:
        """The total size of all matrices, in bytes."""
        return sum(weight.nbytes for weight in self._weights)

    def __len__(self) -> int:
        return len(self._weights)

    def shares_kind(self, other: "ExpertWeights") -> bool:
        """Return whether two stacks have the same dtype and the same activations."""
        mine, theirs = self._weights[0], other._weights[0]
        return mine._dtype is theirs._dtype and mine._activations == theirs._activations

    def weight(self, expert: int) -> Weight:
        """Return the matrix of one expert."""
        return self._weights[expert]

    def bias(self, expert: int) -> Tensor | None:
        """Return the bias of one expert, if it has one."""
        return self._biases[expert]

    def __repr__(self) -> str:
        return f"ExpertWeights({self._name} {list(self.shape)}, {self.dtype})"


@op
def choose_experts(
    logits: Tensor, count: int, is_share_of_all: bool
) -> tuple[Tensor, Tensor]:
    """Choose the experts of each token, and their weights.

    The experts with the largest logits are chosen, and of equal logits the one with the
    lower number.

    weight_e = exp(logit_e) / sum exp(logit_j), over all experts j or over the chosen ones

    Args:
        logits: The results of the router, a float32 tensor [T, E].
        count: The number A of experts that a token uses, from 1 to E.
        is_share_of_all: Whether the sum is over all experts, so that the weights of a
            token do not sum to 1.

    Returns:
        The numbers of the experts in ascending order, an int32 tensor [T, A], and their
        weights, a float32 tensor [T, A].

    Raises:
        ShapeError: If the logits are not a matrix, or if `count` is out of range.
        DTypeError: If the logits are not floating point.
    """
    check_float("choose_experts", logits)
    if logits.ndim != 2 or not 1 <= count <= logits.shape[1]:
        sizes = f"{count} and {list(logits.shape)}"
        rule = "count must be from 1 to the number of experts of logits [T, E]"
        raise ShapeError(f"[choose_experts] {rule}: {sizes}")
    logits = logits.to(float32)
    logits = logits.contiguous()
    values = softmax(logits) if is_share_of_all else logits
    T, E = logits.shape
    experts = allocate((T, count), int32)
    chosen = allocate((T, count), float32)
    lib.choose_experts(
        kernels.pointer(experts._pointer),
        kernels.pointer(chosen._pointer),
        kernels.pointer(logits._pointer),
        kernels.pointer(values._pointer),
        T,
        E,
        count,
    )
    return experts, chosen if is_share_of_all else softmax(chosen)


@op
def expert_hidden(
    x: Tensor,
    experts: Tensor,
    gate: ExpertWeights,
    up: ExpertWeights,
    dtype: DType | str | None = None,
    activation: Activation = "swiglu",
) -> Tensor:
    """Apply the gate and up matrices of each token's experts, and the activation.

    hidden[t * A + a] = swiglu(gate_e x[t], up_e x[t]), where e = experts[t, a], and each
    product includes the expert's bias if it has one

    Args:
        x: A real floating-point tensor [T, in].
        experts: The experts of each token, an int32 tensor [T, A].
        gate, up: The matrices [E, out, in], with the dtypes of `linear_transformations`.
        dtype: The dtype of the result. The default is the dtype of `x`.
        activation: The function of gate and up: "swiglu" or "clamped_swiglu".

    Returns:
        A tensor [T * A, out].

    Raises:
        ShapeError: If the shapes do not fit.
        TensorError: If an expert's number or the activation is unknown.
        DTypeError: As in `linear_transformations`.
    """
    T, A = _checked_experts("expert_hidden", x, experts, gate)
    if gate.shape != up.shape:
        shapes = f"{list(gate.shape)} != {list(up.shape)}"
        raise ShapeError(f"[expert_hidden] gate.shape must equal up.shape: {shapes}")
    if x.shape[0] != T:
        raise _count_error("expert_hidden", x, T, experts)
    if activation not in _ACTIVATIONS:
        names = ", ".join(_ACTIVATIONS)
        text = f"activation must be one of {names}: {ascii(activation)[:80]}"
        raise TensorError(f"[expert_hidden] {text}")
    operand = kernel_operand("expert_hidden", x)
    if not fits_product(operand._dtype, gate.dtype):
        raise _dtype_error("expert_hidden", x, gate)
    dtype = x._dtype if dtype is None else float_dtype("expert_hidden", dtype)
    is_narrow = x._dtype is dtype is bfloat16
    hidden = allocate((T * A, gate.shape[1]), bfloat16 if is_narrow else float32)
    first, second = gate._matrix, up._matrix
    if first is None or second is None or not gate.shares_kind(up):
        return _mixed_hidden(x, experts, (gate, up), dtype, activation)
    if hidden._size and x._shape[1]:
        segments, pairs, panels = _segments(experts, has_one_row=T == 1)
        lib.expert_hidden(
            hidden._pointer,
            _scratch(x._shape[1], panels),
            operand._pointer,
            first,
            second,
            _address(segments),
            _address(pairs),
            len(segments),
            panels,
            T,
            A,
            _ACTIVATIONS[activation][0],
            operand._dtype.code,
            hidden._dtype.code,
            kernels.threads,
        )
    return hidden if hidden._dtype is dtype else hidden.to(dtype)


@op
def expert_outputs(
    hidden: Tensor, experts: Tensor, weights: Tensor, down: ExpertWeights
) -> Tensor:
    """Apply the down matrices of each token's experts, and add the weighted results.

    out[t] = sum over a of weights[t, a] * (down_e hidden[t * A + a]), where
    e = experts[t, a], in the order of a, in float32

    Args:
        hidden: A real floating-point tensor [T * A, in].
        experts: The experts of each token in ascending order, an int32 tensor [T, A].
        weights: Their weights, a float32 tensor [T, A].
        down: The matrices [E, out, in], with the dtypes of `linear_transformation`.

    Returns:
        A float32 tensor [T, out].

    Raises:
        ShapeError: If the shapes do not fit.
        TensorError: If an expert's number is unknown.
        DTypeError: As in `linear_transformation`.
    """
    T, A = _checked_experts("expert_outputs", hidden, experts, down)
    if hidden.shape[0] != T * A or weights.shape != experts.shape:
        raise _count_error("expert_outputs", hidden, T * A, weights)
    operand = kernel_operand("expert_outputs", hidden)
    if not fits_product(operand._dtype, down.dtype):
        raise _dtype_error("expert_outputs", hidden, down)
    if down._matrix is None:
        return _mixed_outputs(hidden, experts, weights, down)
    result = allocate((T, down.shape[1]), float32)
    if result._size and hidden._shape[1]:
        factors = weights.to(float32).contiguous()
        segments, pairs, panels = _segments(experts)
        lib.expert_outputs(
            kernels.pointer(result._pointer),
            _scratch(hidden._shape[1], panels),
            operand._pointer,
            kernels.pointer(factors._pointer),
            down._matrix,
            _address(segments),
            _address(pairs),
            len(segments),
            panels,
            T,
            A,
            operand._dtype.code,
            kernels.threads,
        )
    return result


def _segments(experts: Tensor, has_one_row: bool = False) -> tuple[Any, Any, int]:
    """Sort the pairs of a token and an expert by expert, and divide them into segments.

    Pair t * A + a is token t with its expert of index a.

    Args:
        experts: The experts of each token, an int32 tensor [T, A].
        has_one_row: Whether all pairs read the same row, so that one panel suffices.

    Returns:
        The segments as C `ExpertPairs`, the numbers of the pairs in the order of experts,
        and the number of panels.
    """
    flat: Any = experts.numpy().reshape(-1)
    if experts._shape[0] == 1 and len(set(flat.tolist())) == flat.size:  # decoding
        order = np.argsort(flat)
        single = [
            (number, place, 1, 0 if has_one_row else place)
            for place, number in enumerate(flat[order].tolist())
        ]
        panels = 1 if has_one_row else flat.size
        return np.array(single, np.intp), order.astype(np.int32), panels
    pairs = np.argsort(flat, kind="stable").astype(np.int32)
    numbers, starts, counts = np.unique(
        flat[pairs], return_index=True, return_counts=True
    )
    segments = []
    panels = 0
    for number, start, count in zip(
        numbers.tolist(), starts.tolist(), counts.tolist(), strict=True
    ):
        for first in range(start, start + count, _MOST_PAIRS):
            own = min(_MOST_PAIRS, start + count - first)
            segments.append((number, first, own, 0 if has_one_row else panels))
            panels += -(-own // _PANEL)
    return np.array(segments, np.intp), pairs, 1 if has_one_row else panels


def _scratch(columns: int, panels: int) -> Any:
    """Return scratch for rows of some elements in some panels."""
    return kernels.scratch(lib.expert_scratch_bytes(columns, panels, kernels.threads))


def _address(array: Any) -> Any:
    """Return a C pointer to the elements of segments or pairs."""
    return kernels.pointer(array.ctypes.data)


# Experts of different dtypes


def _pairs_by_expert(experts: Tensor) -> Iterator[tuple[int, Any]]:
    """Yield each expert that is used, with the numbers of its pairs."""
    flat: Any = experts.numpy().reshape(-1)
    for number in np.unique(flat).tolist():
        yield number, np.flatnonzero(flat == number)


def _mixed_hidden(
    x: Tensor,
    experts: Tensor,
    matrices: tuple[ExpertWeights, ExpertWeights],
    dtype: DType,
    activation: Activation,
) -> Tensor:
    """Return `expert_hidden` for matrices of different dtypes."""
    rows: Any = x.numpy()
    T, A = experts.shape
    hidden = allocate((T * A, matrices[0].shape[1]), dtype)
    for expert, pairs in _pairs_by_expert(experts):
        products = linear_transformations(
            Tensor.from_numpy(rows[pairs // A]),
            [matrix.weight(expert) for matrix in matrices],
            dtype,
            [matrix.bias(expert) for matrix in matrices],
        )
        hidden.numpy()[pairs] = _ACTIVATIONS[activation][1](*products).numpy()
    return hidden


def _mixed_outputs(
    hidden: Tensor, experts: Tensor, weights: Tensor, down: ExpertWeights
) -> Tensor:
    """Return `expert_outputs` for matrices of different dtypes."""
    rows: Any = hidden.numpy()
    T, A = experts.shape
    factors: Any = weights.to(float32).numpy()
    results = np.zeros((T, down.shape[1]), np.float32)
    for expert, pairs in _pairs_by_expert(experts):
        own_rows = Tensor.from_numpy(rows[pairs])
        product: Any = linear_transformation(
            own_rows, down.weight(expert), float32, down.bias(expert)
        ).numpy()
        tokens, places = np.divmod(pairs, A)
        results[tokens] += product * factors[tokens, places, None]
    return Tensor.from_numpy(results)


def _checked_experts(
    name: str, x: Tensor, experts: Tensor, weights: ExpertWeights
) -> tuple[int, int]:
    """Check the arguments that two ops share, and return the shape of the experts."""
    check_float(name, x)
    check_kind(name, experts, "int")
    if experts.ndim != 2 or x.ndim != 2 or x.shape[1] != weights.shape[2]:
        both = describe_operands(("x", x), ("experts", experts))
        rule = f"x must be [rows, {weights.shape[2]}] and experts [T, A]"
        raise ShapeError(f"[{name}] {rule}: {both}")
    numbers: Any = experts.numpy()
    if numbers.size and not 0 <= numbers.min() <= numbers.max() < len(weights):
        limits = f"{numbers.min()} to {numbers.max()}"
        rule = f"experts must be from 0 to {len(weights) - 1}"
        raise TensorError(f"[{name}] {rule}: {limits}")
    T, A = experts.shape
    return T, A


def _dtype_error(name: str, x: Tensor, weights: ExpertWeights) -> DTypeError:
    rule = "x.dtype must equal weight.dtype, or hold all its values"
    return DTypeError(f"[{name}] {rule}: {x.dtype} != {weights.dtype}")


def _count_error(name: str, x: Tensor, rows: int, other: Tensor) -> ShapeError:
    both = describe_operands(("x", x), ("other", other))
    return ShapeError(f"[{name}] x.shape[0] must equal {rows}: {x.shape[0]} ({both})")
