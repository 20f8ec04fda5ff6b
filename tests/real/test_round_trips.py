"""A trained model through every format that is written: dequantized, quantized, saved,
loaded.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from src import ml
from src.model import load_model
from src.model.quantization import QUANTIZATIONS
from src.model.saving import save_quantized
from src.model.saving_gguf import save_gguf
from tests.model.test_llama import check_bits
from tests.real.float32 import divergence
from tests.real.recorded import all_logits

pytestmark = pytest.mark.real

TOKENS = 300
# Bounds on the mean KL from float32 of the weights in the file of SmolLM2. The measured
# values are about two thirds of them: 2.3e-4, 1.5e-3, 1.6e-3, 0.48 and 0.39.
MOST = {"bfloat16": 3.5e-4, "q8_0": 2.3e-3, "int8": 2.4e-3, "nf4": 0.72, "q4_0": 0.59}


def saved(source: Path, directory: Path, quantize: str | None) -> Path:
    """Write a dequantized model, quantized again or not, where its format belongs."""
    if quantize in ("q8_0", "q4_0"):
        save_gguf(source, directory / "a.gguf", quantize, dequantize=True)
        return directory / "a.gguf"
    save_quantized(source, directory / "a", quantize, dequantize=True)
    return directory / "a"


def verify(path: Path) -> str:
    """Compare a directory with transformers; return the verdict."""
    done = subprocess.run(
        [sys.executable, "-m", "src.main", "-m", str(path), "--verify"],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return next(line for line in done.stdout.splitlines() if line.startswith("verdict: "))


def test_dequantized_weights_are_plain_and_near_float32(
    smollm2: Path, exact: Any, ids: list[int], figures: list[str], tmp_path: Path
) -> None:
    model = load_model(smollm2, dequantize=True)
    kinds = {weight.dtype for weight in model.tensors.values()}
    assert kinds == {ml.bfloat16, ml.float32}
    logits = all_logits(model.transformer, ids[:TOKENS])
    mean = divergence(logits, exact[:TOKENS])
    assert mean <= MOST["bfloat16"]
    path = saved(smollm2, tmp_path, None)
    again = load_model(path)
    assert again.tokenizer is not None
    check_bits(all_logits(again.transformer, ids[:TOKENS]), logits)
    figures.append(
        f"dequantized to bfloat16: mean KL {mean:.2e}, at most {MOST['bfloat16']:.1e}"
    )
    assert verify(path).startswith("verdict: ok: ")


@pytest.mark.parametrize("quantize", QUANTIZATIONS)
def test_a_round_trip_keeps_the_model(
    quantize: str,
    smollm2: Path,
    exact: Any,
    ids: list[int],
    figures: list[str],
    tmp_path: Path,
) -> None:
    path = saved(smollm2, tmp_path, quantize)
    model = load_model(path)
    kinds = {
        str(w.dtype) for w in model.tensors.values() if isinstance(w, ml.QuantizedTensor)
    }
    assert kinds == {str(QUANTIZATIONS[quantize])}
    some = ids[:TOKENS]
    logits = all_logits(model.transformer, some)
    mean = divergence(logits, exact[:TOKENS])
    assert mean <= MOST[quantize]
    assert model.tokenizer is not None
    text = "a  round trip, 123 «été» 日本\n"
    given = load_model(smollm2).tokenizer
    assert given is not None
    assert model.tokenizer.encode(text, bos=True, eos=False) == given.encode(
        text, bos=True, eos=False
    )
    on_loading = load_model(smollm2, dequantize=True, quantize=quantize)
    check_bits(all_logits(on_loading.transformer, some[:20]), logits[:20])
    if path.suffix == ".gguf":  # transformers has a float32 copy of such files of its own
        path = saved(path, tmp_path, None)
    verdict = verify(path)
    figures.append(
        f"dequantized, {quantize}, saved, loaded: mean KL {mean:.2e}, at most "
        f"{MOST[quantize]:.1e}; --verify {verdict.split(':')[1].strip()}"
    )
    assert verdict.startswith("verdict: ok: ")
