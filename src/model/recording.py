"""A pass of the engine with all its results, to compare results of one's own with."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import ml, trace
from ..trace.records import Event
from ..trace.tracer import Tracer
from .context import InferenceContext, Tokens
from .errors import ModelError
from .loader import Model

# A difference up to this part of the largest element is a matter of rounding.
_ROUNDING = 1e-2


@dataclass(frozen=True)
class Recording:
    """The results of one pass, by stage, layer, op and name, as the trace names them.

    Attributes:
        events: The events of the pass, with the elements of each result.
        logits: The logits, float32 [1, V].
    """

    events: Sequence[Event]
    logits: ml.Tensor

    def values(
        self, stage: int, name: str, layer: int | None = None, op: str | None = None
    ) -> tuple[str, Any]:
        """Return the dtype and the elements of a result of the engine.

        Args:
            stage: The number of the stage.
            name: The name of the result, such as "xq".
            layer: The number of the layer, for the stages 5 to 18.
            op: The name of the op. By default, the last result of this name is returned.

        Returns:
            The name of the dtype, and an array of float32 or complex64.

        Raises:
            ModelError: If there is no such result. The message lists the results of the
                stage.
        """
        found: tuple[str, Any] | None = None
        names: list[str] = []
        for event in self.events:
            if event.stage != stage or event.layer != layer:
                continue
            for result in event.outputs:
                if result.values is None:
                    continue
                names.append(f"{event.op} {result.name}")
                if result.name == name and op in (None, event.op):
                    found = result.dtype, result.values
        if found is None:
            place = f"stage {stage}" + ("" if layer is None else f" of layer {layer}")
            wanted = name if op is None else f"{op} {name}"
            texts = ", ".join(dict.fromkeys(names)) or "no results"
            if not names and layer is None and stage in range(6, 19):
                texts = "layer must be given: layer=0 is the first one"
            raise ModelError(
                f"[recording] name must be a result of {place}: {wanted} ({texts})"
            )
        return found

    def tensor(
        self, stage: int, name: str, layer: int | None = None, op: str | None = None
    ) -> ml.Tensor:
        """Return a result of the engine as a tensor; see `values`."""
        dtype, elements = self.values(stage, name, layer, op)
        return ml.tensor(elements, dtype).with_name(name)

    def check(
        self,
        x: ml.Tensor,
        stage: int,
        name: str,
        layer: int | None = None,
        op: str | None = None,
    ) -> str:
        """Compare a tensor with a result of the engine, bit for bit.

        The other arguments are the arguments of `values`.

        Returns:
            A line that says that the tensors are equal.

        Raises:
            ModelError: If a shape, a dtype or an element differs, or as `values` does.
        """
        dtype, expected = self.values(stage, name, layer, op)
        rule = f"[recording] {name} must equal the engine's in stage {stage}"
        if (x.shape, str(x.dtype)) != (expected.shape, dtype):
            both = f"{list(x.shape)} {x.dtype} != {list(expected.shape)} {dtype}"
            raise ModelError(f"{rule}: {both}")
        is_complex = x.dtype.kind == "complex"
        values = x.numpy().astype(np.complex64 if is_complex else np.float32)
        bits = np.ascontiguousarray(values).view(np.uint32)
        others = np.ascontiguousarray(expected).view(np.uint32)
        differing = int((bits != others).sum())
        if differing:
            with np.errstate(invalid="ignore"):  # infinities
                distance = np.abs(values - expected).astype(np.float64)
            rms = math.sqrt(np.nanmean(distance**2))
            text = f"{differing} of {bits.size} elements differ, with an rms of {rms:.3g}"
            if np.nanmax(distance) < _ROUNDING * np.nanmax(np.abs(expected)):
                text += ", by rounding: the engine uses other ops or another order"
            raise ModelError(f"{rule}: {text}")
        place = f"stage {stage}" + ("" if layer is None else f", layer {layer}")
        return f"{place}: {name} {list(x.shape)} {x.dtype} is equal in every bit"


def record_pass(model: Model, tokens: Tokens) -> Recording:
    """Run the engine once over tokens [T] from position 0, and keep every result.

    A trace of the process, if one is on, ends.

    Raises:
        TokenIdError: If `tokens` is empty, or if an id is not a row of the embeddings.
    """
    events: list[Event] = []
    context = InferenceContext(model.args, len(tokens))
    trace.start(Tracer(model.args.sizes, events.append, values=lambda *_where: True))
    try:
        logits = model.transformer.forward(context, tokens)
    finally:
        trace.stop()
    return Recording(events, logits)
