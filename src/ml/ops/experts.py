"""A feed-forward that consists of experts, of which each token uses a few.

A pass sorts its pairs of a token and an expert by expert, so that each expert's matrices
are read once for all tokens that use the expert. Each element of a result has the bits of
`linear_transformation`, and the results of a token are added in the order of the experts'
numbers. Therefore, the result of a token does not depend on the other tokens of the pass.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np

from ..checks import check_float, check_kind, describe_operands
from ..dtype import DType, float32
from ..errors import ShapeError, TensorError
from ..layout import Shape
from ..op import Operand, op
from ..quantized import Weight
from ..tensor import Tensor, allocate
from .elementwise import swiglu
from .linear import linear_transformation, linear_transformations
from .reduction import softmax

Activation: TypeAlias = Literal["swiglu"]
_ACTIVATIONS = {"swiglu": swiglu}


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

    __slots__ = ("_biases", "_name", "_weights")

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
        self._weights = tuple(weights)
        self._biases = (None,) * len(weights) if biases is None else tuple(biases)
        self._name = name

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
    values: Any = logits.numpy()
    # A stable sort keeps the lower number first; NaN is sorted to the end.
    order = np.argsort(-values, axis=1, kind="stable")[:, :count]
    chosen = np.sort(order, axis=1)
    experts = Tensor.from_numpy(np.ascontiguousarray(chosen, np.int32))
    shares: Any = softmax(logits).numpy() if is_share_of_all else values
    weights = Tensor.from_numpy(np.take_along_axis(shares, chosen, axis=1))
    return experts, weights if is_share_of_all else softmax(weights)


@op
def expert_hidden(
    x: Tensor,
    experts: Tensor,
    gate: ExpertWeights,
    up: ExpertWeights,
    dtype: DType | None = None,
    activation: Activation = "swiglu",
) -> Tensor:
    """Apply the gate and up matrices of each token's experts, and the activation.

    hidden[t * A + a] = swiglu(gate_e x[t], up_e x[t]), where e = experts[t, a]

    Args:
        x: A real floating-point tensor [T, in].
        experts: The experts of each token, an int32 tensor [T, A].
        gate, up: The matrices [E, out, in], with the dtypes of `linear_transformations`.
        dtype: The dtype of the result. The default is the dtype of `x`.
        activation: The function of gate and up.

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
    rows: Any = x.numpy()
    hidden = allocate((T * A, gate.shape[1]), x.dtype if dtype is None else dtype)
    values: Any = hidden.numpy()
    for expert, pairs in _pairs_by_expert(experts):
        matrices = gate.weight(expert), up.weight(expert)
        biases = gate.bias(expert), up.bias(expert)
        own_rows = Tensor.from_numpy(rows[pairs // A])
        products = linear_transformations(own_rows, matrices, dtype, biases)
        values[pairs] = _ACTIVATIONS[activation](*products).numpy()
    return hidden


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
    rows: Any = hidden.numpy()
    factors: Any = weights.to(float32).numpy()
    results = np.zeros((T, down.shape[1]), np.float32)
    for expert, pairs in _pairs_by_expert(experts):
        own_rows = Tensor.from_numpy(rows[pairs])
        matrix = down.weight(expert)
        product: Any = linear_transformation(
            own_rows, matrix, float32, down.bias(expert)
        ).numpy()
        tokens, places = np.divmod(pairs, A)
        results[tokens] += product * factors[tokens, places, None]
    return Tensor.from_numpy(results)


def _pairs_by_expert(experts: Tensor) -> Iterator[tuple[int, Any]]:
    """Yield each expert that is used, with the indices of its pairs in ascending order.

    Pair t * A + a is token t with its expert of index a.
    """
    flat: Any = experts.numpy().reshape(-1)
    if not flat.size:
        return
    order = np.argsort(flat, kind="stable")
    numbers, starts = np.unique(flat[order], return_index=True)
    for number, pairs in zip(numbers, np.split(order, starts[1:]), strict=True):
        yield int(number), pairs


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


def _count_error(name: str, x: Tensor, rows: int, other: Tensor) -> ShapeError:
    both = describe_operands(("x", x), ("other", other))
    return ShapeError(f"[{name}] x.shape[0] must equal {rows}: {x.shape[0]} ({both})")
