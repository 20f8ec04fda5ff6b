"""A feed-forward of experts: a router chooses a few of them for each token.

Source: Shazeer et al., Outrageously Large Neural Networks, 2017; transformers,
models/mixtral/modeling_mixtral.py.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from .. import ml
from ..checkpoint.names import expert_rows
from ..checkpoint.params import ANY, BOOLEAN, Rule, integer_in
from ..trace import mark
from .args import ModelArgs
from .errors import mismatch
from .llama import LlamaFeedForward, Weights

_MOST_EXPERTS = 1024
EXPERT_COUNT = integer_in(2, _MOST_EXPERTS)
"""The rule for a number of experts."""
ACTIVE_COUNT = integer_in(1, _MOST_EXPERTS)
"""The rule for the number of experts that a token uses."""
GGUF_EXPERTS: dict[str, Rule] = {
    "expert_count": EXPERT_COUNT,
    "expert_used_count": ACTIVE_COUNT,
}
"""The rules for the keys of experts in GGUF files."""


EXPERT_KEYS: dict[str, Rule] = {
    "num_experts": EXPERT_COUNT,
    "num_local_experts": EXPERT_COUNT,
    "num_experts_per_tok": ACTIVE_COUNT,
    "output_router_logits": BOOLEAN,
    "router_aux_loss_coef": ANY,
}
"""The rules for the keys of experts in `config.json`."""


MLP_EXPERTS = expert_rows(
    "mlp.experts.{expert}.gate_proj",
    "mlp.experts.{expert}.down_proj",
    "mlp.experts.{expert}.up_proj",
)
"""The table rows for experts whose matrices have the names of a Llama feed-forward."""
NORM_KEYS: dict[str, Rule] = {"norm_topk_prob": BOOLEAN}
"""The rule for the key that divides the weights of a token's experts by their sum."""


def expert_fields(values: Mapping[str, Any], default_count: int) -> dict[str, Any]:
    """Return the args fields for the experts of a `config.json`.

    transformers accepts two names for the number of experts.
    """
    names = ("num_experts", "num_local_experts")
    counts = {values[key] for key in names if values.get(key) is not None}
    if len(counts) > 1:
        got = " and ".join(map(str, sorted(counts)))
        raise mismatch("num_experts", "the same as num_local_experts", got)
    return {
        "n_experts": counts.pop() if counts else default_count,
        "n_active_experts": values["num_experts_per_tok"],
    }


def normalized_expert_fields(
    values: Mapping[str, Any], default_count: int
) -> dict[str, Any]:
    """Return `expert_fields`, and the field for `norm_topk_prob`."""
    return {
        **expert_fields(values, default_count),
        "has_shares_of_all": not values["norm_topk_prob"],
    }


def normalized_expert_keys(args: ModelArgs) -> dict[str, object]:
    """Return the `config.json` keys of experts, with `norm_topk_prob`."""
    return {
        "num_experts": args.n_experts,
        "num_experts_per_tok": args.n_active_experts,
        "norm_topk_prob": not args.has_shares_of_all,
    }


def gguf_expert_fields(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return the args fields for the experts of a GGUF file."""
    return {
        "n_experts": keys.get("expert_count", 0),
        "n_active_experts": keys.get("expert_used_count", 0),
    }


def gguf_expert_keys(args: ModelArgs) -> dict[str, Any]:
    """Return the metadata keys that describe the experts."""
    return {
        "expert_count": args.n_experts,
        "expert_used_count": args.n_active_experts,
    }


class MixtureOfExperts(LlamaFeedForward):
    """Transforms each token by the experts that the router chooses for it.

    out = sum over the chosen experts e of weight_e * w2_e(silu(w1_e(x)) * w3_e(x))

    Attributes:
        activation: The function of gate and up, which a family may replace.
    """

    activation: ClassVar[ml.Activation] = "swiglu"

    def __init__(self, args: ModelArgs, tensors: Weights, layer: int) -> None:
        self.args = args
        self.dtype = args.dtype if args.feed_forward_dtype else None
        name = f"layers.{layer}.feed_forward"
        self.router = tensors[f"{name}.router.weight"]  # [E, D]
        self.router_bias = tensors.get(f"{name}.router.bias")  # [E]
        self.w1 = self._stack(tensors, name, "w1")  # [E, F, D]
        self.w2 = self._stack(tensors, name, "w2")  # [E, D, F]
        self.w3 = self._stack(tensors, name, "w3")  # [E, F, D]

    def _stack(self, tensors: Weights, name: str, matrix: str) -> ml.ExpertWeights:
        """Return one matrix of all experts, and its biases if the model has them."""
        weights: list[Any] = []
        biases: list[Any] = []
        for expert in range(self.args.n_experts):
            weights.append(tensors[f"{name}.experts.{expert}.{matrix}.weight"])
            bias = tensors.get(f"{name}.experts.{expert}.{matrix}.bias")
            if bias is not None:
                biases.append(bias)
        stack = f"{name}.experts.{matrix}.weight"
        return ml.ExpertWeights(weights, biases or None, stack)

    def forward(self, x: ml.Tensor) -> ml.Tensor:
        """Return the term to add to the residual stream for x [T, D]: float32 [T, D]."""
        mark(17)  # feed-forward
        experts, weights = self.choose(x)  # [T, D] -> [T, A], [T, A]
        hidden = ml.expert_hidden(  # [T, D] -> [T*A, F]
            x, experts, self.w1, self.w3, self.dtype, self.activation
        )
        if self.dtype is not None:
            hidden = hidden.to(x.dtype)
        return self.project(hidden, experts, weights)  # [T*A, F] -> [T, D]

    def choose(self, x: ml.Tensor) -> tuple[ml.Tensor, ml.Tensor]:
        """Return the experts [T, A] of each token in x [T, D], and their weights.

        The router computes in float32, because a small difference may change the choice.
        """
        logits = ml.linear_transformation(  # [T, D] -> [T, E]
            x.to(ml.float32), self.router, None, self.router_bias
        )
        return ml.choose_experts(
            logits, self.args.n_active_experts, self.args.has_shares_of_all
        )

    def project(self, hidden: ml.Tensor, *choice: ml.Tensor) -> ml.Tensor:
        """Project hidden [T*A, F] and add the experts' results: float32 [T, D].

        `choice` contains the experts and their weights.
        """
        experts, weights = choice
        return ml.expert_outputs(hidden, experts, weights, self.w2)
