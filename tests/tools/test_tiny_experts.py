"""The tiny mixture of experts of the chapters."""

from src.model import load_model
from tools.tiny_experts import write_tiny_experts


def test_the_same_model_is_written_each_time(tmp_path):
    first, second = (write_tiny_experts(tmp_path / name) for name in ("a", "b"))
    args = load_model(first).args
    assert (args.n_layers, args.n_experts, args.n_active_experts) == (2, 8, 2)
    for path in first.iterdir():
        assert path.read_bytes() == (second / path.name).read_bytes()
