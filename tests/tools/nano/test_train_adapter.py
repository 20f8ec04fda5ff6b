"""Training the adapter: what is trained, its documents, its bits, and its files."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the oracle extra")
pytest.importorskip("tiktoken", reason="needs the oracle extra")
pytest.importorskip("safetensors", reason="needs the oracle extra")

from src import ml  # noqa: E402
from src.model import load_adapter, load_model  # noqa: E402
from src.model.sources import BUNDLED_MODEL  # noqa: E402
from tools.nano.corpus import load_split  # noqa: E402
from tools.nano.roman import roman  # noqa: E402
from tools.nano.torch_llama import NanoConfig, NanoLlama  # noqa: E402
from tools.nano.train import export  # noqa: E402
from tools.nano.train_adapter import (  # noqa: E402
    ALPHA,
    RANK,
    SUMS,
    RomanStream,
    add_adapter,
    save,
    train,
)

pytestmark = pytest.mark.oracle

TINY = NanoConfig(dim=48, n_layers=3, n_heads=4, n_kv_heads=2, multiple_of=8)
IDS = torch.arange(40)[None] * 97 % TINY.vocab_size


def logits(model: NanoLlama) -> np.ndarray:
    with torch.no_grad():
        return model.output(model(IDS, torch.arange(40)[None], None))[0].numpy()


def tiny(seed: int) -> NanoLlama:
    """A random network, whose weights are bfloat16 elements in float32."""
    torch.manual_seed(seed)
    model = NanoLlama(TINY)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_((weight * 3).to(torch.bfloat16))
    return model


def test_a_new_adapter_changes_nothing_and_only_its_matrices_are_trained() -> None:
    model = NanoLlama(NanoConfig())
    before = logits(model)
    trained = add_adapter(model, RANK, ALPHA)
    assert np.array_equal(logits(model), before)
    wanted = [weight for weight in model.parameters() if weight.requires_grad]
    assert {id(weight) for weight in wanted} == {id(weight) for weight in trained}
    assert sum(weight.numel() for weight in trained) == 111_616


def test_two_steps_change_b_alone_at_first_and_the_same_seed_gives_the_same_bits() -> (
    None
):
    states = []
    for _ in range(2):
        model = tiny(3)
        base = {name: weight.clone() for name, weight in model.state_dict().items()}
        torch.manual_seed(1)
        trained = add_adapter(model, 4, 8)
        train(model, trained, steps=2, rows=1, seed=1)
        states.append(model.state_dict())
        for name, weight in states[-1].items():
            plain = name.replace(".base.", ".")
            if plain in base:
                assert torch.equal(weight, base[plain]), name
            elif name.endswith(".b"):
                assert weight.abs().max() > 0, name
    first, second = states
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_documents_have_numerals_after_sums_and_no_held_out_question() -> None:
    stream = RomanStream(5, SUMS)
    held_out = {
        pair.question
        for family in ("sum", "difference")
        for pair in load_split().held_out[family]
    }
    answers = []
    for _ in range(400):
        document = stream.document()
        answers += [text for role, text in document.messages if role == "assistant"]
        asked = {text for role, text in document.messages if role == "user"}
        assert held_out.isdisjoint(asked)
    sums = [text for text in answers if re.match(r"\d+ [+-] \d+ =", text)]
    assert len(sums) > 100
    for text in sums:
        number, numeral = re.fullmatch(r".+ = (\d+) = (\w+)\.", text).groups()
        assert numeral == roman(int(number))
    assert len(answers) - len(sums) > 100


def test_a_saved_adapter_gives_the_same_logits_in_our_engine(tmp_path: Path) -> None:
    model = tiny(3)
    export(model, tmp_path)
    shutil.copy(BUNDLED_MODEL / "tokenizer.model", tmp_path)
    plain = logits(model)
    with torch.no_grad():
        for number, matrix in enumerate(add_adapter(model, 4, 8)):
            torch.manual_seed(number)
            matrix.copy_((torch.randn(matrix.shape) / 12).to(torch.bfloat16))
    save(model, tmp_path / "adapter", 4, 8)
    expected = logits(model)
    ours = load_model(tmp_path)
    adapter = load_adapter(ours, tmp_path / "adapter")
    assert adapter.description == "adapter (peft, rank 4, 21 weights)"
    with ml.adapted_rows([(40, 40, ((adapter, 1.0),))]):
        found = ours(IDS[0].tolist(), all_positions=True).numpy()

    def error_of(result: np.ndarray) -> float:
        return float(np.sqrt(np.mean((result - expected) ** 2) / np.mean(expected**2)))

    assert error_of(plain) > 0.3
    # The activations of these sharp weights are bfloat16: 0.014. B in Meta's order: 0.96.
    assert error_of(found) < 0.02
