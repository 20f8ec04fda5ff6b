"""How the parts of a network are printed and called."""

import pytest

from src import ml
from src.model import load_model
from src.model.llama import RMSNorm
from src.model.module import Module


class _Pair(Module):
    """Two norms, of which one has two names, and attributes that are not parts."""

    def __init__(self, sizes):
        one, two = (norm(size) for size in sizes)
        self.layers = (one, two)
        self.norm = one
        self.again = one
        self._hidden = two
        self.eps = 1e-5
        self.bias = None
        self.weight = ml.quantize(ml.ones(2, 64), "nf4")


def norm(size):
    made = RMSNorm.__new__(RMSNorm)
    made.weight = ml.ones(size)
    made.eps = 0.5
    made.dtype = None
    return made


def test_a_tree_shows_each_part_once_and_equal_layers_in_one_line():
    assert repr(_Pair((3, 3))) == (
        "_Pair(\n"
        "  (layers[0-1]): 2 x RMSNorm([3] float32, eps=0.5)\n"
        "  (norm): RMSNorm([3] float32, eps=0.5)\n"
        "  (weight): [2, 64] nf4\n"
        ")"
    )
    assert "(layers[1]): 1 x RMSNorm([4] float32, eps=0.5)" in repr(_Pair((3, 4)))


def test_the_tree_of_a_model_follows_its_description():
    model = load_model(quantize="nf4")
    first, *tree = str(model).split("\n")
    assert first == repr(model)
    assert tree[0] == "LlamaTransformer("
    assert "      (wq): [192, 192] nf4" in tree


def test_a_part_without_forward_cannot_be_called():
    with pytest.raises(AttributeError, match="forward"):
        _Pair((3, 3))(ml.ones(2))
