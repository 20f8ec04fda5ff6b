"""transformers' Llama with the weights of a tiny model: what ours is compared with."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from src.model import InferenceContext, LlamaTransformer
from tests.model.hugging_face_tiny import config_of, renamed
from tests.model.tiny import Tiny, Weights

torch: Any = pytest.importorskip("torch", reason="needs the oracle extra")
transformers: Any = pytest.importorskip("transformers", reason="needs the oracle extra")

# Tiny matrices: a second thread costs more than it gives.
torch.set_num_threads(1)


def llama_config(config: Tiny, max_positions: int = 16384) -> Any:
    """Returns transformers' configuration of the same sizes."""
    values = config_of(config, max_position_embeddings=max_positions, bos_token_id=None)
    return transformers.LlamaConfig(**values, attn_implementation="eager")


def build(config: Tiny, weights: Weights, dtype: str = "float32") -> Any:
    """Returns LlamaForCausalLM with the weights, in eval mode, computing in a dtype."""
    model = transformers.LlamaForCausalLM(llama_config(config))
    state = {n: torch.from_numpy(w.copy()) for n, w in renamed(config, weights).items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected
    assert set(missing) <= ({"lm_head.weight"} if config.tied else set())
    model.tie_weights()
    return model.to(getattr(torch, dtype)).eval()


def errors(found: npt.NDArray[np.float32], exact: npt.NDArray[np.float32]) -> tuple[float, float]:
    """Returns the largest and the root mean square difference."""
    difference = found.astype(np.float64) - exact
    return float(np.abs(difference).max()), float(np.sqrt((difference**2).mean()))


def greedy(model: Any, ids: list[int], count: int) -> tuple[list[int], npt.NDArray[np.float32]]:
    """Returns what transformers continues with, and the logits [count, V] behind each choice."""
    with torch.no_grad():
        result = model.generate(
            torch.tensor([ids]), max_new_tokens=count, do_sample=False,
            output_logits=True, return_dict_in_generate=True, pad_token_id=0, eos_token_id=None,
        )  # fmt: skip
    chosen = result.sequences[0, len(ids) :].tolist()
    return chosen, torch.stack(result.logits)[:, 0].float().numpy()


def assert_same_choices(
    model: LlamaTransformer,
    prompt: list[int],
    chosen: list[int],
    exact: npt.NDArray[np.float32],
    bound: float,
    least_clear: float,
) -> None:
    """Holds our greedy tokens against those of transformers, wherever the choice is clear.

    Ours is fed with the chosen tokens step by step: after an unclear choice both go on from one
    text.

    Args:
        model: Our network.
        prompt: What the tokens continue.
        chosen: The tokens that transformers chose.
        exact: The logits [count, V] behind each choice.
        bound: What the difference of two logits may be off by; a smaller gap is not clear.
        least_clear: Which share of the choices must be clear for the test to mean anything.
    """
    context = InferenceContext(model.args, len(prompt) + len(chosen))
    found = [model.forward(context, prompt).numpy()[0]]
    for token in chosen[:-1]:
        found.append(model.forward(context, [token], context.length).numpy()[0])
    best = np.sort(exact, axis=1)[:, -2:]
    clear = best[:, 1] - best[:, 0] > bound
    assert clear.mean() > least_clear
    ours = np.argmax(np.stack(found), axis=1)
    np.testing.assert_array_equal(ours[clear], np.array(chosen)[clear])


def logits(model: Any, ids: list[int]) -> npt.NDArray[np.float32]:
    """Returns the logits of all positions, float32 [T, V]."""
    with torch.no_grad():
        result = model(torch.tensor([ids])).logits[0].float().numpy()
    assert isinstance(result, np.ndarray)
    return result
