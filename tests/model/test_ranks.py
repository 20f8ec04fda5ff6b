"""A model on several ranks gives the bits of one process;
what each rank owns and holds.
"""

import json
import math
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from src import ml
from src.checkpoint import CheckpointError
from src.model import load_model
from src.model.forecast import MemoryForecast
from src.model.ranks import bounds_of, own_args, own_forecast
from src.model.saving import save_quantized
from tests.checkpoint.test_hugging_face_config import LLAMA_3_2_1B
from tests.csrc.ggml_operands import blocks_of
from tests.model import rank_cases
from tests.model.families import CONFIGS as FAMILIES
from tests.model.families import write_family
from tests.model.hugging_face_tiny import write_tiny
from tests.model.test_adapters import EVERYTHING
from tests.model.test_gguf import write as write_gguf
from tests.model.tiny import CONFIGS, GROUPED, TIED, Tiny, weights, write_meta_directory
from tests.support.adapters import random_pairs, write_peft
from tests.support.gguf_writer import Stored, gguf_bytes, llama_keys, llama_tensors
from tests.support.hugging_face_writer import write_hugging_face_directory, zero_arrays
from tests.support.mpi import mpirun, needs_mpi
from tests.support.pth_writer import write_random_meta_directory

# Rows of whole blocks of GGUF.
EVEN = replace(GROUPED, name="even", dim=256, ffn=512, vocab=160)
# Small versions of Meta's 70B in 8 files and of its 405B in 16 files, with their heads.
SIZES_70B = {
    "dim": 256,
    "n_layers": 2,
    "n_heads": 64,
    "n_kv_heads": 8,
    "vocab_size": 512,
    "ffn_dim_multiplier": 1.3,
    "multiple_of": 64,
    "norm_eps": 1e-5,
    "rope_theta": 500000.0,
}
SIZES_405B = SIZES_70B | {"n_heads": 128, "dim": 512, "ffn_dim_multiplier": 1.2}


def on_ranks(ranks: int, cases: list[Any], directory: Path, *beside: str) -> list[Any]:
    """Run cases on ranks, and `beside` them on another one, after those words."""
    file = directory / "cases.json"
    file.write_text(json.dumps([[path and str(path), how] for path, how in cases]))
    command = (sys.executable, "-m", "tests.model.rank_cases", str(file))
    ended = mpirun(ranks, *command, *beside, *(command if beside else ()))
    assert ended.returncode == 0, ended.stderr
    found: list[Any] = json.loads(ended.stdout)
    return found


def expected(cases: list[Any]) -> list[Any]:
    before = ml.get_num_threads()
    ml.set_num_threads(1)
    found = rank_cases.run([list(case) for case in cases], None)
    ml.set_num_threads(before)
    return found


def same_bits(cases: list[Any], directory: Path, ranks: tuple[int, ...]) -> None:
    one = expected(cases)
    assert len(set(one)) == len(one) or len(cases) == 1
    for count in ranks:
        assert on_ranks(count, cases, directory) == one, f"{count} ranks"


def tiny_cases(directory: Path) -> list[Any]:
    """Writes models of all sizes, parts, layouts and formats; returns the cases."""
    cases: list[Any] = [(None, None)]
    for config in CONFIGS:
        dtype = ml.bfloat16 if config.layers == 2 else ml.float32
        path = directory / config.name
        cases.append(
            (write_meta_directory(path, replace(config, vocab=131), dtype), None)
        )
    for family in FAMILIES:
        cases.append((write_family(directory / family, family), None))
    biased = write_family(
        directory / "biased", "granite", attention_bias=True, mlp_bias=True
    )
    cases += [(biased, None), (biased, "nf4")]
    even = write_tiny(directory / "even", replace(EVEN, vocab=131), ml.bfloat16)
    for how in ("nf4", "int8"):
        # Rows of 90 and 64: blocks of nf4 begin inside of rows.
        cases.append((directory / "grouped", how))
        cases.append((directory / "tied", how))
        save_quantized(even, directory / how, how)
        cases.append((directory / how, None))
        cases.append((directory / "grouped", f"{how} activations"))
    plain = write_gguf(
        directory / "plain.gguf", replace(GROUPED, vocab=131), ml_dtypes.bfloat16
    )
    return cases + [(path, None) for path in (plain, *gguf_files(directory))]


def adapter_cases(directory: Path) -> list[Any]:
    """Writes models and an adapter of each, which names all matrices."""
    directory.mkdir(exist_ok=True)
    cases: list[Any] = []
    grouped = write_meta_directory(directory / "m", replace(GROUPED, vocab=131))
    tied = write_tiny(directory / "tied", replace(TIED, vocab=131), ml.bfloat16)
    qwen = write_family(directory / "qwen2", "qwen2")
    for path, how in [(grouped, ""), (tied, ""), (tied, "nf4"), (qwen, "")]:
        pairs = random_pairs(load_model(path).args, 3, modules=EVERYTHING)
        adapter = write_peft(directory / f"a{len(cases)}", pairs)
        cases.append((path, f"{how} adapter {adapter}"))
    return cases


def intervention_cases(directory: Path) -> list[Any]:
    """Writes models whose tensors change in all passes."""
    grouped = write_meta_directory(directory / "i", replace(GROUPED, vocab=131))
    qwen = write_family(directory / "qwen3", "qwen3")
    return [
        (path, f"{how} interventions") for path in (grouped, qwen) for how in ("", "nf4")
    ]


@needs_mpi
def test_adapters_and_interventions_have_the_bits_of_one_process(tmp_path: Path) -> None:
    cases = adapter_cases(tmp_path / "a") + intervention_cases(tmp_path / "a")
    same_bits(cases, tmp_path, (2, 3))


def gguf_files(directory: Path) -> list[Path]:
    """Writes a model in blocks of each format, a mix of them as in Q4_K_M, and one
    without output.

    Rows of 512 in w2 and of 256 elsewhere, of which a block of 256 is all or half.
    """
    config = replace(EVEN, vocab=131)
    plain = llama_tensors(weights(config))
    kinds: dict[str, Callable[[str], int]] = {
        row.name: lambda _, number=number: number
        for number, row in ml.GGML_DTYPES.items()
    }
    kinds["mixed"] = lambda name: 14 if "attn_v" in name or "ffn_down" in name else 12
    kinds["tied"] = kinds["mixed"]
    for seed, (label, kind) in enumerate(kinds.items()):
        blocks = {
            name: in_blocks(kind(name), array.shape, seed) if array.ndim == 2 else array
            for name, array in plain.items()
            if label != "tied" or name != "output.weight"
        }
        (directory / f"{label}.gguf").write_bytes(gguf_bytes(llama_keys(config), blocks))
    return [directory / f"{label}.gguf" for label in kinds]


def in_blocks(number: int, shape: tuple[int, ...], seed: int) -> Stored:
    dtype = ml.GGML_DTYPES[number]
    scales = np.random.default_rng(seed).standard_normal(61) / 200
    return Stored(
        shape, number, blocks_of(dtype, math.prod(shape), scales, seed).tobytes()
    )


@needs_mpi
def test_two_ranks_give_the_bits_of_one(tmp_path: Path) -> None:
    grouped = write_meta_directory(
        tmp_path / "grouped", replace(GROUPED, vocab=131), ml.bfloat16
    )
    tied = gguf_files(tmp_path)[-1]
    cases = [(grouped, None), (grouped, "nf4"), (tied, None), (tied, "dequantize")]
    cases += [(tied, "dequantize nf4"), (tied, "activations"), (None, "cache")]
    same_bits(cases, tmp_path, (2,))


@needs_mpi
@pytest.mark.slow
def test_any_number_of_ranks_gives_the_bits_of_one(tmp_path: Path) -> None:
    same_bits(tiny_cases(tmp_path), tmp_path, (1, 2, 3, 4, 5))


@needs_mpi
@pytest.mark.slow
def test_ranks_of_two_instruction_sets_give_the_bits_of_one(tmp_path: Path) -> None:
    cases: list[Any] = [(None, None), (None, "nf4"), (gguf_files(tmp_path)[-1], None)]
    cases.append((None, "cache"))
    other = ":", "-n", "1", "env", "LLAMA_BOLTS_ISA=avx2"
    assert on_ranks(1, cases, tmp_path, *other) == expected(cases)


def shards(
    directory: Path, params: dict[str, Any], count: int, embeddings: int = 0
) -> Path:
    write_random_meta_directory(
        directory, params, shards=count, embeddings_split=embeddings, seed=3
    )
    return directory


def test_copies_of_key_value_heads_are_merged_right_and_compared(tmp_path: Path) -> None:
    whole, cut, other = (tmp_path / name for name in ("whole", "cut", "other"))
    one = load_model(shards(whole, SIZES_405B, 1))
    merged = load_model(shards(cut, SIZES_405B, 16))
    for name, weight in one.tensors.items():
        assert weight.numpy().tobytes() == merged.tensors[name].numpy().tobytes(), name
    write_random_meta_directory(other, SIZES_405B, shards=16, seed=4)
    shutil.copy(other / "consolidated.03.pth", cut)
    text = (
        r"shard 03: tensor 'layers.0.attention.wk.weight': values: expected the values of "
        r"shard 02"
    )
    with pytest.raises(CheckpointError, match=text):
        load_model(cut)


@needs_mpi
@pytest.mark.slow
def test_metas_shards_give_the_same_bits_on_any_number_of_ranks(tmp_path: Path) -> None:
    names = {
        "70B": (SIZES_70B, 8, 0),
        "405B": (SIZES_405B, 16, 0),
        "Llama 2": (SIZES_70B, 8, 1),
    }
    paths = [shards(tmp_path / name, *how) for name, how in names.items()]
    cases: list[Any] = [(path, None) for path in paths[:2]] + [(paths[0], "nf4")]
    same_bits(cases, tmp_path, (1, 2, 4, 8))
    by_columns: list[Any] = [(paths[2], None)]
    same_bits(by_columns, tmp_path, (2, 5))
    assert expected(by_columns) == expected(cases[:1])


# What a rank owns


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.name)
def test_ranks_own_every_row_once_and_whole_heads(config: Tiny) -> None:
    args = config.args()
    totals = {"D": args.dim, "F": args.ffn_dim, "V": args.vocab_size}
    totals |= {"Hh": args.n_heads * args.head_dim, "Kh": args.n_kv_heads * args.head_dim}
    for size in (1, 2, 3, 5, 8, 13):
        bounds = bounds_of(args, size, {"D": 8, "Hh": 3, "F": 64})
        for letter, total in totals.items():
            assert len(bounds[letter]) == size + 1
            assert (bounds[letter][0], bounds[letter][-1]) == (0, total)
            assert list(bounds[letter]) == sorted(bounds[letter])
        for letter, unit in (
            ("D", 8),
            ("Hh", math.lcm(args.head_dim * args.group_size, 3)),
        ):
            assert all(
                bound % unit == 0 or bound == totals[letter] for bound in bounds[letter]
            )
        owned = [own_args(args, bounds, rank) for rank in range(size)]
        assert sum(own.n_heads for own in owned) == args.n_heads
        assert sum(own.n_kv_heads for own in owned) == args.n_kv_heads
        assert all(own.n_heads == own.n_kv_heads * args.group_size for own in owned)


def test_the_forecast_of_a_rank_is_its_share() -> None:
    args = GROUPED.args()
    whole = MemoryForecast(args, 100, mapped=10**9, free=8 * 10**9)
    part = own_forecast(whole, 1, 2, 2)
    assert 0.49 * 10**9 < part.mapped < 0.51 * 10**9
    assert (part.free, part.args.n_kv_heads) == (4 * 10**9, 1)
    sizes = {"dim": 8192, "n_layers": 80, "n_heads": 64, "n_kv_heads": 8, "head_dim": 128}
    args = replace(args, **sizes, ffn_dim=28672, vocab_size=128256)  # the 70B
    merged = MemoryForecast(args, 100, copied=10**9, copied_as="weights to be merged")
    part = own_forecast(merged, 8, 8, 1)
    # A rank of eight finds its rows of q, k, v, w1, w3 and output in one file of eight.
    # wo and w2 are cut by columns: 8192 + 28672 of 8192 * 2 + 1024 * 2 + 28672 * 3 rows.
    assert part.copied == 125_000_000 * 36864 // 104448
    assert 0.124 * 10**9 < part.copied + part.mapped < 0.126 * 10**9


@needs_mpi
@pytest.mark.slow
def test_a_rank_has_its_share_of_the_weights_in_memory_and_no_more(
    tmp_path: Path,
) -> None:
    # Of holes: it takes no disk.
    directory = write_hugging_face_directory(
        tmp_path / "1b", LLAMA_3_2_1B, zero_arrays(LLAMA_3_2_1B)
    )
    nbytes = sum(weight.nbytes for weight in load_model(directory).tensors.values())
    for count in (2, 4):
        (resident,) = on_ranks(count, [(directory, "resident")], tmp_path)
        assert len(resident) == count
        for each in resident:
            assert each == pytest.approx(nbytes / count, rel=0.05)
