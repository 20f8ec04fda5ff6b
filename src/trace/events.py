"""The registry of the 21 stages, with their ops, source code and chapters.

Op results get their names and letters (see docs/LEGEND.md) from this registry, so the
model's source code need not contain them. Line numbers and anchors are computed from
names, so they cannot become stale.

This module does not import NumPy, so that `--help` need not load it.
"""

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from .code import PACKAGE, display_path, symbols_of

Letters: TypeAlias = tuple[str, ...]

# (first stage, page in docs/ that explains the stages from that one on)
_PAGES = ((16, "14c-next-token.md"), (6, "14b-attention.md"), (1, "14-forward-pass.md"))


@dataclass(frozen=True)
class StageOp:
    """An op in a stage, with the name and shape of its result."""

    op: str
    name: str  # the name of the result
    letters: Letters  # for each dimension: a legend letter, a product or a half


@dataclass(frozen=True)
class Stage:
    """One of the 21 stages."""

    number: int  # counted from 1, in run order
    name: str
    module: str  # the module that contains the function, relative to the package
    function: str  # the qualified name of the function that implements the stage
    # The ops in run order. Some may not run: a single token needs no mask, and some ops
    # are specific to one model family.
    steps: tuple[StageOp, ...] = ()

    @property
    def heading(self) -> str:
        """The heading of the section that explains the stage."""
        return f"Stage {self.number}: {self.name}"

    @property
    def chapter(self) -> str:
        """The page that explains the stage, with the anchor that code hosts generate."""
        anchor = re.sub(r"[^\w\- ]", "", self.heading.lower()).replace(" ", "-")
        page = next(page for first, page in _PAGES if self.number >= first)
        return f"docs/{page}#{anchor}"

    @property
    def diagram(self) -> str:
        """The path of the stage's diagram."""
        return f"diagrams/stage-{self.number:02}.svg"

    @property
    def code(self) -> str:
        """The file and current line of the stage's mark, or else of its function."""
        file = PACKAGE / f"{self.module.replace('.', '/')}.py"
        symbols = symbols_of(file)
        mark = f"{self.function}: mark({self.number})"
        symbol = symbols.get(mark) or symbols.get(self.function)
        return display_path(str(file)) + (f":{symbol[0]}" if symbol else "")


def _stages(registry: str) -> dict[int, Stage]:
    """Parse a registry that has one line per stage, followed by one line per op."""
    stages = {}
    for text in re.split(r"\n(?=\d)", registry.strip()):
        head, *lines = text.split("\n")
        title, place = head.split(" | ")
        number, name = title.split(" ", 1)
        module, function = place.split()
        steps = []
        for line in lines:
            op, result, letters = line.split(maxsplit=2)
            steps.append(StageOp(op, result, tuple(letters.strip("[]").split(", "))))
        stages[int(number)] = Stage(int(number), name, module, function, tuple(steps))
    return stages


# A stage line contains the number, name, module and function. The lines below it contain
# its ops, each with the name and letters of its result. Some ops are specific to a family
# or file format: OLMo 2 uses `rms_norm` in stages 15 and 18 and `to` in stages 6 and 16,
# Granite uses `multiply`, and BF16 in GGUF files uses `to` in stage 17. Layers with
# experts use a router in stage 17. Layers with a window make a mask in stage 13, and have
# W positions instead of S in the results of stages 11 to 13 beyond the window. A model
# with two rotary tables has both in each row of the rotations.
STAGES: Mapping[int, Stage] = _stages("""
1 tokenization | tokenizer.tokenizer Tokenizer.encode
2 tokens tensor | model.context token_tensor
    mark tokens [T]
3 loop over the sequence | inference.engine InferenceEngine._steps
4 input tensor (embedding), rotations, mask | model.llama LlamaTransformer.forward
    get_rows x [T, D]
    to x [T, D]
    multiply scaled [T, D]
    slice rotations [T, h/2]
    slice rotations [T, h]
    full mask [T, S]
    triu mask [T, S]
5 each transformer block | model.llama LlamaTransformerBlock.forward
6 attention pre-norm | model.llama LlamaTransformerBlock.forward
    rms_norm normed [T, D]
    to normed [T, D]
7 attention | model.llama LlamaAttention.forward
8 xq, xk, xv | model.llama LlamaAttention.queries_keys_values
    linear_transformations xq [T, H*h]
    linear_transformations xk [T, K*h]
    linear_transformations xv [T, K*h]
    rms_norm xq_normed [T, H*h]
    rms_norm xk_normed [T, K*h]
9 reshape to heads | model.llama LlamaAttention.heads
    reshape xq [T, H, h]
    reshape xk [T, K, h]
    reshape xv [T, K, h]
    rms_norm xq_normed [T, H, h]
    rms_norm xk_normed [T, K, h]
10 rotary embedding | model.llama LlamaAttention.rotate
    rotary_embedding xq [T, H, h]
    rotary_embedding xk [T, K, h]
11 KV cache update | model.llama LlamaAttention.forward
    write_cache cache_k [C, K, h]
    write_cache cache_v [C, K, h]
    read_cache keys [S, K, h]
    read_cache values [S, K, h]
12 repeat heads and transposes | model.llama LlamaAttention.eager
    repeat_heads keys [S, H, h]
    repeat_heads values [S, H, h]
    transpose xq [H, T, h]
    transpose keys [H, S, h]
    transpose keys [H, h, S]
    transpose values [H, S, h]
13 scores, mask, softmax | model.llama LlamaAttention.eager
    matmul scores [H, T, S]
    multiply scores [H, T, S]
    soft_cap scores [H, T, S]
    full mask [T, S]
    triu mask [T, S]
    tril mask [T, S]
    add mask [T, S]
    add scores [H, T, S]
    softmax weights [H, T, S]
14 attention output | model.llama LlamaAttention.eager
    attention output [T, H, h]
    matmul output [H, T, h]
    transpose output [T, H, h]
    reshape output [T, H*h]
    linear_transformation attention [T, D]
    multiply scaled [T, D]
15 attention residual | model.llama LlamaTransformerBlock.forward
    rms_norm normed [T, D]
    add x [T, D]
16 feed-forward pre-norm | model.llama LlamaTransformerBlock.forward
    rms_norm normed [T, D]
    to normed [T, D]
17 feed-forward | model.llama LlamaFeedForward.forward
    linear_transformations gate [T, F]
    linear_transformations up [T, F]
    swiglu hidden [T, F]
    geglu hidden [T, F]
    to widened [T, D]
    linear_transformation router_logits [T, E]
    choose_experts experts [T, A]
    choose_experts expert_weights [T, A]
    expert_hidden hidden [T*A, F]
    to hidden [T, F]
    to hidden [T*A, F]
    linear_transformation feed_forward [T, D]
    expert_outputs feed_forward [T, D]
    multiply scaled [T, D]
18 feed-forward residual | model.llama LlamaTransformerBlock.forward
    rms_norm normed [T, D]
    add x [T, D]
19 output norm and logits | model.llama LlamaTransformer.forward
    slice x [1, D]
    rms_norm x [1, D]
    rms_norm x [T, D]
    linear_transformation logits [1, V]
    linear_transformation logits [T, V]
    soft_cap capped [1, V]
    soft_cap capped [T, V]
    div scaled [1, V]
    div scaled [T, V]
20 sampling | inference.sampling Sampler.sample
21 token to text, stop check | inference.answer AnswerText.push
""")

# The meaning of each letter, in the same order as in docs/LEGEND.md.
LEGEND: Mapping[str, str] = {
    "T": "new tokens",
    "S": "cached plus new tokens",
    "D": "model dimension",
    "H": "query heads",
    "K": "key/value heads",
    "G": "query heads per key/value head",
    "h": "head dimension",
    "F": "feed-forward dimension",
    "V": "vocabulary",
    "L": "layers",
    "C": "positions of the KV cache",
    "W": "positions that a layer with a window reads",
    "E": "experts",
    "A": "experts that a token uses",
}

# Stages that contain other stages.
HOLDS: Mapping[int, str] = {5: "6 to 18", 7: "8 to 14"}


def size_of(letter: str, sizes: Mapping[str, int]) -> int | None:
    """Return the size of a letter, product (`H*h`), half (`h/2`) or number, if known."""
    size = 1
    for name, divisor in _factors(letter):
        value = name if isinstance(name, int) else sizes.get(name)
        if value is None:
            return None
        size *= value // divisor
    return size


@functools.cache
def _factors(letter: str) -> tuple[tuple[int | str, int], ...]:
    """Return the factors of a product, numbers or letters, each with its divisor."""
    factors = []
    for factor in letter.split("*"):
        name, _, divisor = factor.partition("/")
        factors.append((int(name) if name.isdecimal() else name, int(divisor or 1)))
    return tuple(factors)


def in_window(letters: Letters) -> Letters:
    """Return the letters of a result in a layer that does not read all S positions."""
    return tuple("W" if letter == "S" else letter for letter in letters)


def fits(letters: Letters, shape: tuple[int, ...], sizes: Mapping[str, int]) -> bool:
    """Return whether the sizes of the letters equal a shape."""
    return len(letters) == len(shape) and all(
        size_of(letter, sizes) == n for letter, n in zip(letters, shape, strict=True)
    )
