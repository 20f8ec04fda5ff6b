"""Train a LoRA adapter of the bundled model that adds Roman numerals to sums.

Run `python -m tools.nano.train_adapter`; needs the `oracle` extra. The weights of the
bundled model do not change: only the matrices A and B of each linear layer are trained,
y = W x + alpha / r * B (A x). B starts at zero, so the first step sees the bundled model.
The documents are those of the bundled model, with more sums and differences, whose
results get a Roman numeral (`23 + 18 = 41 = XLI.`). The other answers stay, so that the
adapter changes nothing else. The number of steps is fixed, and one thread computes them,
so that the same machine makes the same adapter again.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from src.checkpoint.adapters import CONFIG_FILE, PEFT_FILE
from src.checkpoint.names import LAYER_ROWS
from src.ml.kernels import available_isas
from src.model.sources import BUNDLED_MODEL

from .batches import BatchStream, Encoder
from .documents import Document, DocumentStream
from .mixtures import TYPING
from .roman import BUNDLED_ADAPTER, with_roman_results
from .torch_llama import NanoConfig, NanoLlama
from .train import BUNDLED_TOKENIZER, CLIP, batch_loss, load_exported, rate_at

RANK = 8
ALPHA = 16
STEPS = 900
ROWS = 8
RATE = 4e-3
LOG_STEPS = 50
SUMS = replace(
    TYPING,
    turns={
        **TYPING.turns,
        "sum": 120,
        "difference": 120,
        "sum-forms": 40,
        "difference-forms": 40,
        "word-sums": 40,
    },
)
"""The last mixture of the bundled model, with more arithmetic."""


class AdaptedLinear(nn.Module):
    """y = W x + alpha / r * B (A x), with a frozen W."""

    def __init__(self, base: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__()
        self.base = base
        self.scale = alpha / rank
        self.a = nn.Parameter(torch.empty(rank, base.in_features))
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.a, a=math.sqrt(5))  # as peft does

    def forward(self, x: Tensor) -> Tensor:
        """Return the changed product, [B, T, in] -> [B, T, out]."""
        low = nn.functional.linear(x, self.a)
        result: Tensor = self.base(x) + self.scale * nn.functional.linear(low, self.b)
        return result


class RomanStream(DocumentStream):
    """The documents of the bundled model, with Roman numerals after sums."""

    def document(self, turns: int | None = None) -> Document:
        """Return the next document."""
        return with_roman_results(super().document(turns))


def add_adapter(model: NanoLlama, rank: int, alpha: float) -> list[nn.Parameter]:
    """Freeze a network, adapt each matrix of its layers, and return what is trained."""
    model.requires_grad_(False)
    trained: list[nn.Parameter] = []
    for layer in model.layers:
        for part in (layer.attention, layer.feed_forward):
            for name, linear in list(part.named_children()):
                adapted = AdaptedLinear(linear, rank, alpha)
                setattr(part, name, adapted)
                trained += [adapted.a, adapted.b]
    return trained


def adapter_tensors(model: NanoLlama) -> dict[str, Tensor]:
    """Return the matrices in bfloat16, by the names of peft.

    The rows of wq and wk are in Hugging Face's order: the first elements of all pairs
    that a head rotates come before the second ones.
    """
    tensors: dict[str, Tensor] = {}
    for number, layer in enumerate(model.layers):
        for row in LAYER_ROWS:
            if len(row.sizes) != 2:
                continue
            adapted = layer.get_submodule(row.name.removesuffix(".weight"))
            b = adapted.b
            if row.name.endswith((".wq.weight", ".wk.weight")):
                pairs = b.view(-1, model.config.head_dim // 2, 2, b.shape[1])
                b = pairs.transpose(1, 2).reshape(b.shape)
            name = row.hugging_face.removesuffix(".weight")
            stem = f"base_model.model.model.layers.{number}.{name}"
            for letter, matrix in (("A", adapted.a), ("B", b)):
                stored = matrix.detach().to(torch.bfloat16).contiguous()
                tensors[f"{stem}.lora_{letter}.weight"] = stored
    return tensors


def adapter_config(rank: int, alpha: float) -> dict[str, Any]:
    """Return the content of peft's `adapter_config.json`."""
    modules = {
        row.hugging_face.removesuffix(".weight").rpartition(".")[2]
        for row in LAYER_ROWS
        if len(row.sizes) == 2
    }
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": None,
        "inference_mode": True,
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted(modules),
    }


def save(model: NanoLlama, directory: Path, rank: int, alpha: float) -> None:
    """Write the adapter of a network as a directory of peft."""
    directory.mkdir(parents=True, exist_ok=True)
    config = json.dumps(adapter_config(rank, alpha), indent=2) + "\n"
    (directory / CONFIG_FILE).write_text(config)
    save_file(adapter_tensors(model), directory / PEFT_FILE, {"format": "pt"})


def train(
    model: NanoLlama, trained: list[nn.Parameter], steps: int, rows: int, seed: int
) -> None:
    """Train an adapter, and print the mean loss now and then."""
    batches = BatchStream(Encoder(BUNDLED_TOKENIZER), seed, SUMS)
    batches.documents = RomanStream(seed, SUMS)
    optimizer = torch.optim.AdamW(trained, lr=RATE, betas=(0.9, 0.99), weight_decay=0.0)
    has_bfloat16 = "avx512bf16" in available_isas()
    start = time.monotonic()
    shown = 0.0
    for step in range(steps):
        batch = batches.short(rows, SUMS.short)
        with torch.autocast("cpu", torch.bfloat16, enabled=has_bfloat16):
            loss = batch_loss(model, batch)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, CLIP)
        for group in optimizer.param_groups:
            group["lr"] = RATE * rate_at(step / steps, step)
        optimizer.step()
        shown += float(loss.detach())
        if step % LOG_STEPS == LOG_STEPS - 1:
            minutes = (time.monotonic() - start) / 60
            mean = shown / LOG_STEPS
            print(f"step {step + 1} loss {mean:.4f} minutes {minutes:.1f}", flush=True)
            shown = 0.0


def main() -> None:
    """Parse the arguments, train, save."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--steps", type=int, default=STEPS, help=f"number of steps (default {STEPS})"
    )
    parser.add_argument(
        "--seed", type=int, default=1, help="seed of A and of the data (default 1)"
    )
    parser.add_argument(
        "--output", type=Path, default=BUNDLED_ADAPTER, help="where it is written"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed)
    model = NanoLlama(NanoConfig())
    load_exported(model, BUNDLED_MODEL)
    trained = add_adapter(model, RANK, ALPHA)
    train(model, trained, arguments.steps, ROWS, arguments.seed)
    save(model, arguments.output, RANK, ALPHA)
    count = sum(matrix.numel() for matrix in trained)
    print(f"{count} elements in {len(trained)} matrices")


if __name__ == "__main__":
    main()
