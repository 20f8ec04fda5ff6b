"""`--verify`: agreement on every layout, and each fault named at its stage."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from src import memory, ml
from src.cli import verify
from src.model import Model, load_model
from src.model.llama import LlamaAttention
from src.model.saving import save_quantized
from src.tokenizer import Tokenizer
from tests.cli.conftest import Outcome, run_program
from tests.model.families import CONFIGS as FAMILIES
from tests.model.families import EVEN_SIZES, WITH_EXPERTS, write_family
from tests.model.hugging_face_tiny import config_of, renamed, write_tiny
from tests.model.tiny import BYTES_VOCAB, CONFIGS, GROUPED, weights, write_meta_directory
from tests.support.hugging_face_writer import write_hugging_face_directory
from tests.support.mxfp4 import pack_experts
from tests.support.pth_writer import SMALL_PARAMS, write_random_meta_directory
from tests.support.sentencepiece_writer import RESERVED, model_message, ranked
from tests.tokenizer.json_files import byte_level_file, write_json

# An object, the name of a function, and a change.
Patch = tuple[Any, str, Callable[[Any], Any]]
BY_NAME = {config.name: config for config in CONFIGS}
BIASES = {"attention_bias": True, "mlp_bias": True}
OK = "verdict: ok: every stage is within its bound"


def verdict(done: Outcome) -> str:
    return done.stdout.decode().splitlines()[-1]


def write_with_biases(directory: Path) -> Path:
    """Writes a model with biases, a tokenizer, and embeddings as small as those of real
    models.
    """
    config = replace(GROUPED, name="byte_level", vocab=300)
    arrays = renamed(config, weights(config))
    arrays["model.embed_tokens.weight"] *= 0.02
    random = np.random.default_rng(5)
    for name in [name for name in arrays if name.endswith("proj.weight")]:
        bias = 0.5 * random.standard_normal(len(arrays[name]), np.float32)
        arrays[name.replace(".weight", ".bias")] = bias
    write_json(directory, byte_level_file())
    return write_hugging_face_directory(directory, config_of(config, **BIASES), arrays)


@pytest.fixture(scope="module")
def with_biases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_with_biases(tmp_path_factory.mktemp("biases"))


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs transformers in this process, which saves the seconds that its imports
    take.
    """
    pytest.importorskip("transformers", reason="needs the oracle extra")
    from transformers.utils import logging

    from src.cli import reference

    logging.disable_progress_bar()

    def run(command: list[Any], **_: Any) -> "subprocess.CompletedProcess[str]":
        reference.main(Path(command[-1]))
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)


# The processes themselves.


@pytest.mark.slow
@pytest.mark.oracle
def test_the_bundled_model_agrees_and_no_pytorch_is_imported():
    pytest.importorskip("transformers", reason="needs the oracle extra")
    done = run_program("--verify")
    assert (done.returncode, done.stderr) == (0, b"")
    assert verdict(done).startswith(OK)
    assert "transformers" in verdict(done)
    text = (
        "import sys; from src.main import main; code = main(['--verify', '-q']); "
        "assert not {'torch', 'transformers'} & set(sys.modules); sys.exit(code)"
    )
    subprocess.run([sys.executable, "-c", text], check=True, capture_output=True)


@pytest.mark.slow
@pytest.mark.oracle
def test_a_model_that_transformers_refuses_is_one_line(
    run, with_biases, tmp_path, monkeypatch
):
    pytest.importorskip("transformers", reason="needs the oracle extra")
    start = subprocess.run
    directory = shutil.copytree(with_biases, tmp_path / "model")

    def without_weights(
        command: list[Any], **more: Any
    ) -> "subprocess.CompletedProcess[str]":
        (directory / "model.safetensors").unlink()
        return start(command, **more)

    monkeypatch.setattr(subprocess, "run", without_weights)
    done = run("-m", directory, "--verify")
    assert (done.returncode, done.stdout) == (3, b"")
    assert re.fullmatch(
        rb"error: .*: --verify: transformers: OSError: [^\n]+\n", done.stderr
    )


# What agrees.


def meta_in_shards(directory: Path) -> Path:
    write_random_meta_directory(directory, SMALL_PARAMS, shards=2, embeddings_split=1)
    return directory


def llama2(directory: Path) -> Path:
    pieces = [*RESERVED, *ranked("▁t", "he", "▁the", "▁", "t", "h", "e")]
    params = SMALL_PARAMS | {"vocab_size": len(pieces)}
    write_random_meta_directory(directory, params, dtype=np.float16)
    (directory / "tokenizer.model").write_bytes(model_message(pieces))
    return directory


def quantized(kind: str, source: Callable[[Path], Path]) -> Callable[[Path], Path]:
    def write(directory: Path) -> Path:
        save_quantized(source(directory / "plain"), directory / "saved", kind)
        return directory / "saved"

    return write


def with_packed_experts(directory: Path) -> Path:
    write_family(directory, "gpt_oss", **EVEN_SIZES)
    pack_experts(directory)
    return directory


def tied(directory: Path) -> Path:
    return write_tiny(directory, replace(BY_NAME["tied"], dim=64), ml.bfloat16)


LAYOUTS: dict[str, Callable[[Path], Path]] = {
    "biases": write_with_biases,
    "tied bfloat16": tied,
    "float16 in shards": lambda d: write_tiny(d, GROUPED, ml.float16, shards=3),
    "Llama 3.2": lambda d: write_tiny(d, BY_NAME["scaled_by_32"]),
    "Mistral": lambda d: write_tiny(
        d,
        GROUPED,
        model_type="mistral",
        architectures=["MistralForCausalLM"],
        sliding_window=None,
    ),
    **{
        family: partial(write_family, family=family, dtype=ml.float32, hidden_size=48)
        for family in FAMILIES
    },
    "olmoe": partial(
        write_family, family="olmoe", dtype=ml.float32, hidden_size=48, head_dim=4
    ),
    "mxfp4 of gpt_oss": with_packed_experts,
    "nf4 of olmo2": quantized(
        "nf4", partial(write_family, family="olmo2", hidden_size=64, intermediate_size=64)
    ),
    "int8 of gemma2": quantized(
        "int8",
        partial(write_family, family="gemma2", **(EVEN_SIZES | {"hidden_size": 96})),
    ),
    "nf4 with biases": quantized("nf4", write_with_biases),
    "nf4, tied": quantized("nf4", tied),
    "int8 of Meta": quantized(
        "int8", lambda d: write_meta_directory(d, replace(BYTES_VOCAB, ffn=96))
    ),
    "Meta": lambda d: write_meta_directory(d, BYTES_VOCAB, ml.bfloat16, tokenizer=True),
    "Meta, tied": lambda d: write_meta_directory(d, BY_NAME["tied"]),
    "Meta in shards": meta_in_shards,
    "Llama 2": llama2,
}


@pytest.mark.oracle
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_agrees(run, tmp_path, here, layout):
    done = run("-m", LAYOUTS[layout](tmp_path), "--verify")
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
    assert verdict(done).startswith(OK)
    lines = done.stdout.decode().splitlines()
    compared = [line.split()[0] for line in lines if line.endswith(" ok")]
    has_tokenizer = layout in ("biases", "nf4 with biases", "Meta", "Llama 2")
    stages = [4, 6, 8, 8, 8, 10, 10, 14, 14, 15, 16, 17, 17, 17, 17, 18, 19, 19, 19, 20]
    if "gemma" in layout:
        stages[10:10] = [15]
        stages[-4:-4] = [18]
    if layout == "qwen3":
        stages[3:4] = [9, 8, 9]
    if layout == "gemma3_text":
        stages[5:5] = [9, 9]
    if layout in (*WITH_EXPERTS, "mxfp4 of gpt_oss"):
        del stages[12:15]  # transformers joins the products of experts
    if layout == "qwen3_moe":
        stages[3:4] = [9, 8, 9]
    elif layout == "olmoe":
        pass
    elif "olmo" in layout:
        stages = [
            4,
            *[8] * 5,
            10,
            10,
            14,
            14,
            15,
            15,
            17,
            17,
            17,
            17,
            18,
            18,
            19,
            19,
            19,
            20,
        ]
    assert [int(number) for number in compared] == [1] * has_tokenizer + stages


@pytest.mark.oracle
def test_verbose_shows_every_layer_and_a_prompt_is_taken(run, with_biases, here):
    done = run("-m", with_biases, "--verify", "-v", "-p", "then")
    rows = [line for line in done.stdout.decode().splitlines() if line.endswith(" ok")]
    assert len(rows) == 1 + 1 + GROUPED.layers * 15 + 4
    assert b"prompt: then\n" in done.stdout
    assert "; 2 tokens; both in float32)" in verdict(done)  # "the" and "n"


# What does not.


def once_loaded(change: Callable[[Model], Model]) -> Patch:
    """Changes the model on our side only."""
    return verify, "open_model", lambda load: lambda *of: change(load(*of))


def with_args(**changes: Any) -> Patch:
    return once_loaded(lambda model: replace(model, args=replace(model.args, **changes)))


def with_weight(name: str, change: Callable[[Any], None]) -> Patch:
    def apply(model: Model) -> Model:
        array = np.array(model.tensors[name])
        change(array)
        tensors = dict(model.tensors) | {name: ml.Tensor.from_numpy(array, name=name)}
        model.checkpoint.replace_tensors(tensors)
        return model

    return once_loaded(apply)


def one_step(array: Any) -> None:
    """Changes one element by as much as a bit of bfloat16."""
    array.reshape(-1)[array.size // 2] *= 1 + 2**-7


def permuted(array: Any) -> None:
    """Reorders the rows of each head of h 8, as for neighbours that are rotated
    together.
    """
    array[:] = array.reshape(-1, 2, 4, array.shape[1]).swapaxes(1, 2).reshape(array.shape)


FAULTS: dict[str, tuple[Patch, str]] = {
    "theta": (with_args(rope_theta=10100.0), "10 rotary embedding: xq of layer 0"),
    "eps": (with_args(norm_eps=1e-6), "6 attention pre-norm: normed of layer 0"),
    "pairs": (with_args(rope_pairs="interleaved"), "8 xq, xk, xv: xq of layer 0"),
    "permuted": (
        with_weight("layers.1.attention.wk.weight", permuted),
        "8 xq, xk, xv: xk of layer 1",
    ),
    "not a number": (
        with_weight("layers.1.attention.wq.weight", lambda rows: rows.fill(np.nan)),
        "8 xq, xk, xv: xq of layer 1",
    ),
    "one token": (
        with_weight("tok_embeddings.weight", lambda rows: one_step(rows[ord("e") - 33])),
        "4 input tensor (embedding), rotations, mask: x",
    ),
    "the attention that answers": (
        (
            ml,
            "attention",
            lambda fused: lambda q, *rest: fused(ml.multiply(q, 1.01), *rest),
        ),
        "19 output norm and logits: logits of the whole network",
    ),
    "scores of another scale": (
        (
            LlamaAttention,
            "eager",
            lambda f: lambda self, q, *k: f(self, ml.multiply(q, 1.01), *k),
        ),
        "14 attention output: output of layer 0",
    ),
    "another token": (
        (
            Tokenizer,
            "encode",
            lambda f: lambda self, text, **how: f(self, text.lower(), **how),
        ),
        "1 tokenization: ids of ",
    ),
    **{
        name: (with_weight(name, one_step), text)
        for name, text in {
            "layers.0.attention_norm.weight": "6 attention pre-norm: normed of layer 0",
            "layers.1.attention.wq.weight": "8 xq, xk, xv: xq of layer 1",
            "layers.0.attention.wv.bias": "8 xq, xk, xv: xv of layer 0",
            "layers.1.attention.wo.weight": "14 attention output: attention of layer 1",
            "layers.1.ffn_norm.weight": "16 feed-forward pre-norm: normed of layer 1",
            "layers.0.feed_forward.w1.weight": "17 feed-forward: gate of layer 0",
            "layers.0.feed_forward.w3.bias": "17 feed-forward: up of layer 0",
            "layers.1.feed_forward.w2.weight": "17 feed-forward: feed_forward of layer 1",
            "norm.weight": "19 output norm and logits: x",
            "output.weight": "19 output norm and logits: logits",
        }.items()
    },
}


@pytest.mark.oracle
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_at_its_stage(run, with_biases, here, monkeypatch, fault):
    (owner, name, change), text = FAULTS[fault]
    monkeypatch.setattr(owner, name, change(getattr(owner, name)))
    done = run("-m", with_biases, "--verify")
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: --verify: stage {text}".encode())
    assert verdict(done).startswith(f"verdict: FAIL: stage {text}")
    assert done.stdout.decode().count(" FAIL\n") >= 1
    if fault == "one token":  # which another prompt does not have
        assert run("-m", with_biases, "--verify", "-p", "abc").returncode == 0


# What is refused.


def test_without_transformers_a_line_says_what_to_install(run, monkeypatch):
    monkeypatch.setattr(
        verify, "find_spec", lambda name: None if name == "torch" else name
    )
    text = (
        b"error: --verify: expected transformers and its dependencies, got no torch: "
        b"run `pip install -e '.[oracle]'` in the repository\n"
    )
    assert run("--verify") == Outcome(2, b"", text)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "find_spec", lambda name: name)


def test_a_copy_that_does_not_fit_is_refused_with_the_arithmetic(
    run, installed, monkeypatch
):
    monkeypatch.setattr(memory, "available_memory", lambda: 400 << 20)
    count = load_model().parameter_count
    got = memory.readable_bytes(4 * count + (512 << 20))
    text = (
        f"error: memory: expected at most 400.0 MiB available, got {got} for a float32 "
        f"copy in transformers ({count} weights * 4 bytes + 512.0 MiB for PyTorch)\n"
    )
    assert run("--verify") == Outcome(4, b"", text.encode())


def test_a_process_that_the_system_ends_is_a_lack_of_memory(run, installed, monkeypatch):
    ended = subprocess.CompletedProcess([], -9, "", "")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: ended)
    text = (
        b"error: memory: expected enough for transformers, but its process was killed\n"
    )
    assert run("--verify") == Outcome(4, b"", text)


def test_a_prompt_without_tokens_is_refused(run, with_biases, installed):
    done = run("-m", with_biases, "--verify", "-p", "")
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"--verify: expected a prompt of at least one token, got none" in done.stderr
