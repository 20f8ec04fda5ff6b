"""Train the bundled model and export it in Meta's layout, in one run or in several.

Run `python -m tools.nano.train --minutes 90`; needs the `oracle` extra (PyTorch,
tiktoken) and a C++ compiler, with which PyTorch fuses the operations of a layer. A run
ends after `--pause` minutes or with Ctrl-C, and the same command goes on from its
checkpoint: weights, momenta, and the place in the stream of documents. The learning rate
follows the minutes trained in all runs together, so training ends well on a slow machine
too; the result therefore depends on the machine, and only the stream is the same for the
same seed. A GPU is used where there is one.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the field's name for it
from torch import Tensor

from src.ml.kernels import available_isas
from src.model.sources import BUNDLED_MODEL

from .batches import Batch, BatchStream, Encoder
from .mixtures import MIXTURES, Mixture
from .torch_llama import NanoConfig, NanoLlama

BUNDLED_TOKENIZER = BUNDLED_MODEL / "tokenizer.model"

LONG_LENGTH = 1025
MATRIX_RATE = 0.02
OTHER_RATE = 3e-3
WARMUP_STEPS = 40
FULL_PART = 0.35
CLIP = 1.0
SAVE_SECONDS = 240.0
LOG_STEPS = 25


class Muon(torch.optim.Optimizer):
    """Momentum whose update is made nearly orthogonal by five Newton-Schulz steps.

    Source: K. Jordan et al., "Muon: An optimizer for hidden layers in neural networks",
    2024.
    """

    def __init__(
        self,
        weights: list[Tensor],
        lr: float,
        momentum: float = 0.95,
        decay: float = 0.01,
    ) -> None:
        super().__init__(weights, {"lr": lr, "momentum": momentum, "decay": decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # noqa: ARG002 - the base class has it
        """Update every matrix once."""
        for group in self.param_groups:
            for weight in group["params"]:
                state = self.state[weight]
                average = state.setdefault("momentum", torch.zeros_like(weight))
                average.lerp_(weight.grad, 1 - group["momentum"])
                update = orthogonalized(weight.grad.lerp(average, group["momentum"]))
                scale = max(1.0, weight.shape[0] / weight.shape[1]) ** 0.5
                weight.mul_(1 - group["lr"] * group["decay"])
                weight.add_(update, alpha=-group["lr"] * scale)


def orthogonalized(matrix: Tensor) -> Tensor:
    """Return a matrix with the singular vectors of `matrix` and singular values near one.

    Computed in bfloat16, as in the source of `Muon`.
    """
    x = (matrix.T if matrix.shape[0] > matrix.shape[1] else matrix).bfloat16()
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return (x.T if matrix.shape[0] > matrix.shape[1] else x).to(matrix.dtype)


def batch_loss(model: NanoLlama, batch: Batch) -> Tensor:
    """Return the mean cross entropy over the learned positions; logits are made for those
    alone.
    """
    hidden = model(batch.tokens, batch.positions, batch.mask)[:, :-1]
    logits = model.output(hidden[batch.learned])
    return F.cross_entropy(logits, batch.targets[batch.learned])


def rate_at(progress: float, step: int) -> float:
    """Return the factor of the learning rate: a short rise, a level part, straight down
    to zero.
    """
    rise = min(1.0, (step + 1) / WARMUP_STEPS)
    return rise * min(1.0, max(0.0, (1.0 - progress) / (1.0 - FULL_PART)))


class Trainer:
    """One run against the clock."""

    def __init__(
        self,
        config: NanoConfig,
        seed: int,
        mixture: Mixture,
        rows: int = 16,
        tokenizer: Path = BUNDLED_TOKENIZER,
        rate: float = 1.0,
    ) -> None:
        torch.manual_seed(seed)
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.autocast = self.device == "cuda" or "avx512bf16" in available_isas()
        self.model = NanoLlama(config).to(self.device)
        matrices = [
            w
            for name, w in self.model.named_parameters()
            if name.startswith("layers.") and w.ndim == 2
        ]
        others = [w for w in self.model.parameters() if all(w is not m for m in matrices)]
        self.optimizers: list[tuple[torch.optim.Optimizer, float]] = [
            (Muon(matrices, MATRIX_RATE), rate * MATRIX_RATE),
            (
                torch.optim.AdamW(
                    others, lr=OTHER_RATE, betas=(0.9, 0.95), weight_decay=0.0
                ),
                rate * OTHER_RATE,
            ),
        ]
        self.batches = BatchStream(Encoder(tokenizer), seed, mixture)
        self._mixture = mixture
        self._rows = rows
        self.steps = self.tokens = 0
        self.seconds = 0.0

    def run(self, minutes: float, pause: float, checkpoint: Path) -> None:
        """Train until all runs together took `minutes`, this one `pause`, or Ctrl-C is
        pressed.

        Writes a line of log and a checkpoint now and then, and a checkpoint at the end.
        """
        start = last_save = time.monotonic()
        before = self.seconds
        shown = 0.0
        stopped: list[int] = []
        handlers = {
            number: signal.signal(number, lambda *received: stopped.append(received[0]))
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        while not stopped and self.seconds < min(60 * minutes, before + 60 * pause):
            rate = rate_at(self.seconds / (60 * minutes), self.steps)
            shown += self._step(self._next_batch(), rate)
            self.seconds = before + time.monotonic() - start
            if self.steps % LOG_STEPS == 0:
                speed = self.tokens / self.seconds
                print(
                    f"step {self.steps} loss {shown / LOG_STEPS:.4f} rate {rate:.3f} "
                    f"tokens/s {speed:.0f} minutes {self.seconds / 60:.1f}",
                    flush=True,
                )
                shown = 0.0
            if time.monotonic() - last_save > SAVE_SECONDS:
                self.save(checkpoint)
                last_save = time.monotonic()
        for number, handler in handlers.items():
            signal.signal(number, handler)
        self.save(checkpoint)

    def _next_batch(self) -> Batch:
        every = self._mixture.long_every
        short = self._mixture.short
        if self.steps % every == every - 1:
            rows = max(1, self._rows * short // LONG_LENGTH)
            return self.batches.long(rows, LONG_LENGTH).to(self.device)
        return self.batches.short(self._rows, short).to(self.device)

    def _step(self, batch: Batch, rate: float) -> float:
        with torch.autocast(self.device, torch.bfloat16, enabled=self.autocast):
            loss = batch_loss(self.model, batch)
        self.model.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        for optimizer, full_rate in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = full_rate * rate
            optimizer.step()
        self.steps += 1
        self.tokens += batch.tokens.numel()
        return float(loss.detach())

    def save(self, path: Path) -> None:
        """Write all that is needed to go on, by way of a temporary file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        state = {
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer, _ in self.optimizers],
            "counts": (self.steps, self.tokens, self.seconds),
            "stream": self.batches.documents.state,
        }
        torch.save(state, path.with_suffix(".tmp"))
        path.with_suffix(".tmp").replace(path)

    def resume(self, path: Path) -> None:
        """Take weights, momenta, counts and the place in the stream from a checkpoint."""
        state = torch.load(path, weights_only=True, map_location=self.device)
        self.model.load_state_dict(state["model"])
        for (optimizer, _), saved in zip(
            self.optimizers, state["optimizers"], strict=True
        ):
            optimizer.load_state_dict(saved)
        self.steps, self.tokens, self.seconds = state["counts"]
        self.batches.documents.state = state["stream"]


def load_exported(model: NanoLlama, directory: Path) -> None:
    """Take the weights of an exported model, to train it further."""
    weights = torch.load(directory / "consolidated.00.pth", weights_only=True)
    model.load_state_dict(weights)


def export(model: NanoLlama, directory: Path) -> None:
    """Write `consolidated.00.pth` (a plain dict, bfloat16) and `params.json` as Meta
    does.
    """
    weights = {
        name: weight.detach().to("cpu", torch.bfloat16).contiguous()
        for name, weight in model.state_dict().items()
    }
    torch.save(weights, directory / "consolidated.00.pth")
    (directory / "params.json").write_text(
        json.dumps(asdict(model.config), indent=2) + "\n"
    )


def main() -> None:
    """Parse the arguments, train, export."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=90.0,
        help="time of all runs together (default 90)",
    )
    parser.add_argument(
        "--pause",
        type=float,
        default=math.inf,
        help="end this run after this many minutes",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=1,
        help="seed of the weights and of the data (default 1)",
    )
    parser.add_argument(
        "--threads", type=int, default=2, help="threads of PyTorch (default 2)"
    )
    parser.add_argument(
        "--checkpoint", type=Path, default=Path("build/nano/training.pt"),
        help="where the run is saved; one that exists is gone on from",
    )  # fmt: skip
    parser.add_argument(
        "--rows",
        type=int,
        default=16,
        help="rows of short documents in a step (default 16)",
    )
    parser.add_argument(
        "--rate",
        type=float,
        default=1.0,
        help="factor of the learning rates (default 1); 0.4 or less to train a good model further",
    )
    parser.add_argument(
        "--start",
        type=Path,
        help="an exported model to start from instead of random weights",
    )
    parser.add_argument(
        "--mixture",
        choices=sorted(MIXTURES),
        default="even",
        help="how often each family is drawn; a training begins with even and ends with late",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=BUNDLED_MODEL,
        help="where tokenizer.model is and the model is written",
    )
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    tokenizer = arguments.output / "tokenizer.model"
    mixture = MIXTURES[arguments.mixture]
    trainer = Trainer(
        NanoConfig(), arguments.seed, mixture, arguments.rows, tokenizer, arguments.rate
    )
    for layer in trainer.model.layers:
        # A step has one of two sizes: short rows or long ones.
        layer.compile(dynamic=False)
    if arguments.start:
        load_exported(trainer.model, arguments.start)
    if arguments.checkpoint.exists():
        trainer.resume(arguments.checkpoint)
    trainer.run(arguments.minutes, arguments.pause, arguments.checkpoint)
    export(trainer.model, arguments.output)
    print(
        f"{trainer.steps} steps, {trainer.tokens} tokens, {trainer.seconds / 60:.1f} minutes"
    )


if __name__ == "__main__":
    main()
