"""transformers' Llama with the weights of a tiny model: what ours is compared with."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

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


def errors(
    found: npt.NDArray[np.float32], exact: npt.NDArray[np.float32]
) -> tuple[float, float]:
    """Returns the largest and the root mean square difference."""
    difference = found.astype(np.float64) - exact
    return float(np.abs(difference).max()), float(np.sqrt((difference**2).mean()))


def logits(model: Any, ids: list[int]) -> npt.NDArray[np.float32]:
    """Returns the logits of all positions, float32 [T, V]."""
    with torch.no_grad():
        result = model(torch.tensor([ids])).logits[0].float().numpy()
    assert isinstance(result, np.ndarray)
    return result
