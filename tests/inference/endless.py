"""A mask with which an answer goes on as long as it may, whatever the model would say."""

import numpy as np

from src.model import Model


class Endless:
    """Allows every token that does not end an answer."""

    def __init__(self, model: Model) -> None:
        self._allowed = ~np.isin(np.arange(model.args.vocab_size), list(model.stop_ids))

    def allowed(self) -> np.ndarray:
        return self._allowed

    def accept(self, token_id: int) -> None:
        assert self._allowed[token_id]
