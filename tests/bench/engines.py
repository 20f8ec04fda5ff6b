"""The engines that are compared, each to be run in a process of its own."""

import ctypes
import statistics
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from . import ik_llama_cpp
from .counting import counted_calls

OURS = "llama-bolts"
TRANSFORMERS = "transformers"
LLAMA_CPP = "llama.cpp"
IK_LLAMA_CPP = "ik_llama.cpp"
IK_REPACKED = "ik_llama.cpp -rtr 1"


@dataclass(frozen=True)
class Setup:
    """What every engine is told: the model directory, threads, positions, and the GGUF
    file.

    `sequences` is how many texts llama.cpp holds at once; they share the positions.
    `activations` are those of our products with quantized weights. `calls` is the library
    that `ik_llama_cpp.build` has made.
    """

    directory: Path
    threads: int
    positions: int
    gguf: Path | None = None
    sequences: int = 1
    activations: str = "int16"
    calls: Path | None = None


class Engine:
    """What is timed of any engine.

    It starts with an empty cache; `run` passes tokens through the network after those
    that are cached and returns the logits after the last, float32 [V]; `reset` empties
    the cache; `truncate` removes the tokens from a position on; `facts` are versions and
    settings.
    """

    run: Callable[[list[int]], Any]
    reset: Callable[[], None]
    truncate: Callable[[int], None]
    facts: Callable[[], dict[str, Any]]

    def logits(self, prompt: list[int], steps: list[int]) -> Any:
        """Return the logits after a prompt and further tokens, run one by one."""
        self.reset()
        result = self.run(prompt) if prompt else None
        for token in steps:
            result = self.run([token])
        return result

    def prefill_rate(self, ids: list[int]) -> float:
        """Return tokens per second of a prompt, from an empty cache to its last
        logits.
        """
        self.reset()
        (seconds,) = seconds_of_each(self.run, [ids])
        return len(ids) / seconds

    def decode_rate(self, ids: list[int]) -> float:
        """Return steps per second, the median of the steps, from an empty cache on."""
        self.reset()
        return self._steps_rate(ids)

    def fill(self, ids: list[int]) -> Any:
        """Run a prompt, which `continued_rate` continues; return the logits after it."""
        self.reset()
        self.filled = len(ids)
        parts = [ids[start : start + 512] for start in range(0, len(ids), 512)]
        return [self.run(part) for part in parts][-1]

    def continued_rate(self, ids: list[int]) -> float:
        """Return steps per second, the median of the steps, after the filled prompt."""
        self.truncate(self.filled)
        return self._steps_rate(ids)

    def repeated_rate(self, ids: list[int]) -> float:
        """Return tokens per second of the last tokens of the filled prompt."""
        self.truncate(self.filled - len(ids))
        (seconds,) = seconds_of_each(self.run, [ids])
        return len(ids) / seconds

    def _steps_rate(self, ids: list[int]) -> float:
        return 1 / statistics.median(
            seconds_of_each(self.run, [[token] for token in ids])
        )


def seconds_of_each(run: Callable[[Any], object], arguments: list[Any]) -> list[float]:
    times = []
    for argument in arguments:
        start = time.perf_counter()
        run(argument)
        times.append(time.perf_counter() - start)
    return times


class Ours(Engine):
    """llama-bolts, of which more is asked."""

    def __init__(self, setup: Setup) -> None:
        from src import ml
        from src.ml.kernels import keep_freed_memory
        from src.model import InferenceContext, load_model

        keep_freed_memory()  # as the program does
        ml.set_num_threads(setup.threads)
        self.model = load_model(setup.directory, activations=setup.activations)
        self.context = InferenceContext(self.model.args, setup.positions)
        self.info = ml.build_info()
        self._is_filled = False

    def reset(self) -> None:
        self.context.clear()

    def truncate(self, position: int) -> None:
        self.context.length = position

    def run(self, ids: list[int]) -> Any:
        start = self.context.length
        return self.model.transformer.forward(self.context, ids, start).numpy()[0]

    def seek(self, position: int) -> None:
        """Take the positions before one as filled: with noise as keys and values, made
        once.
        """
        if not self._is_filled:
            for tensor in cache_tensors(self.context):
                fill_with_noise(tensor.numpy())
            self._is_filled = True
        self.context.memory.first_kept = 0  # the rings of windows are filled, too
        self.context.length = position

    def facts(self) -> dict[str, Any]:
        return {**self.info, "parameters": self.model.parameter_count}

    def decode_rate_at(self, position: int, ids: list[int]) -> float:
        """Return steps per second behind a filled cache."""
        self.seek(position)
        return self._steps_rate(ids)

    def chunk_rate_at(self, position: int, ids: list[int]) -> float:
        """Return chunks per second of a part of a prompt that starts at a position."""
        self.seek(position)
        (seconds,) = seconds_of_each(self.run, [ids])
        return 1 / seconds

    def rows_rate(self, rows: int, count: int) -> float:
        """Return steps per second of a few rows with all their logits, as for a checked
        draft.
        """
        self.reset()

        def step(ids: list[int]) -> None:
            start = self.context.length
            forward = self.model.transformer.forward
            forward(self.context, ids, start, all_positions=True).numpy()

        return 1 / statistics.median(seconds_of_each(step, [list(range(rows))] * count))

    def sampling_seconds(self, count: int = 30) -> float:
        """Return the median time to choose a token with the default settings."""
        from src.inference.sampling import Sampler, SamplingArgs

        sampler = Sampler(SamplingArgs(seed=1))
        logits = self.run([0])
        times = seconds_of_each(
            lambda last: sampler.sample(logits, last), list(range(count))
        )
        return statistics.median(times)

    def calls(self, ids: list[int]) -> dict[str, float]:
        """Return the C calls of a decode step, and the share of its time outside of
        them.
        """
        self.reset()
        with counted_calls() as calls:
            wall = sum(seconds_of_each(self.run, [[token] for token in ids]))
        return {
            "calls_per_step": calls.count / len(ids),
            "share_outside": 1 - calls.seconds / wall,
            "microseconds_outside": 1e6 * (wall - calls.seconds) / len(ids),
        }


def cache_tensors(context: Any) -> list[Any]:
    """Give the tensors that hold the keys and values of all layers."""
    return [tensor for cache in context.caches for tensor in (cache.keys, cache.values)]


def fill_with_noise(array: Any) -> None:
    """Overwrite an array with normal numbers that repeat, without a second array of its
    size.
    """
    noise = (
        np.random.default_rng(1).standard_normal(1 << 16, np.float32).astype(array.dtype)
    )
    flat = array.reshape(-1)
    assert np.shares_memory(flat, array)
    for start in range(0, flat.size, noise.size):
        part = flat[start : start + noise.size]
        part[...] = noise[: part.size]


class Transformers(Engine):
    """LlamaForCausalLM in bfloat16 on PyTorch, its weights mapped from Meta's file."""

    def __init__(self, setup: Setup) -> None:
        import torch
        import transformers

        from src.cli.reference import build_llama, meta_weights
        from src.model import load_model
        from src.model.saved_config import hugging_face_config

        torch.set_num_threads(setup.threads)
        self.torch = torch
        self.transformers = transformers
        given = hugging_face_config(
            load_model(setup.directory).args, None, "bfloat16", "llama"
        )
        config = transformers.LlamaConfig.from_dict(given | {"tie_word_embeddings": True})
        self.model = build_llama(config, meta_weights(setup.directory, config))
        self.seconds = {name: self._time(name) for name in ("eager", "sdpa")}
        self.model.set_attn_implementation(
            min(self.seconds, key=self.seconds.__getitem__)
        )
        self.reset()

    def reset(self) -> None:
        self.cache = self.transformers.DynamicCache(config=self.model.config)

    def run(self, ids: list[int]) -> Any:
        torch = self.torch
        with torch.inference_mode():
            result = self.model(
                torch.tensor([ids]), cache=self.cache, use_cache=True, logits_to_keep=1
            )
        return result.logits[0, -1].float().numpy()

    def _time(self, attention: str) -> float:
        """Time a prompt of 128 tokens and a few steps with an implementation of
        attention.
        """
        self.model.set_attn_implementation(attention)
        for _ in range(2):
            self.reset()
            seconds = sum(
                seconds_of_each(self.run, [list(range(128)), [0], [1], [2], [3]])
            )
        return seconds

    def facts(self) -> dict[str, Any]:
        return {
            "transformers": self.transformers.__version__,
            "torch": self.torch.__version__,
            "attention": self.model.config._attn_implementation,
            "seconds_of_each_attention": self.seconds,
            "cpu": self.torch.backends.cpu.get_cpu_capability(),
        }


class LlamaCpp(Engine):
    """llama.cpp, through the C functions of llama-cpp-python; its own defaults but the
    threads.
    """

    def __init__(self, setup: Setup) -> None:
        import llama_cpp

        self.lib = llama_cpp
        self._quiet = llama_cpp.llama_log_callback(lambda *_: None)
        llama_cpp.llama_log_set(self._quiet, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        self.model = llama_cpp.llama_model_load_from_file(
            str(setup.gguf).encode(), llama_cpp.llama_model_default_params()
        )
        assert self.model, f"llama.cpp refuses {setup.gguf}"
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = setup.positions
        params.n_batch = 512
        params.n_ubatch = 512
        params.n_seq_max = setup.sequences
        params.swa_full = False  # as its programs: window layers keep their windows only
        params.n_threads = params.n_threads_batch = setup.threads
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        assert self.context, "llama.cpp makes no context"
        vocabulary = llama_cpp.llama_model_get_vocab(self.model)
        self.vocabulary_size = llama_cpp.llama_vocab_n_tokens(vocabulary)

    def reset(self) -> None:
        self.lib.llama_memory_clear(self.lib.llama_get_memory(self.context), True)

    def truncate(self, position: int) -> None:
        memory = self.lib.llama_get_memory(self.context)
        if not self.lib.llama_memory_seq_rm(memory, 0, position, -1):
            raise SystemExit("llama.cpp could not remove the last tokens")

    def run(self, ids: list[int]) -> Any:
        for start in range(0, len(ids), 512):
            part = ids[start : start + 512]
            tokens = (self.lib.llama_token * len(part))(*part)
            batch = self.lib.llama_batch_get_one(tokens, len(part))
            if self.lib.llama_decode(self.context, batch) != 0:
                raise SystemExit("llama.cpp could not decode")
        logits = self.lib.llama_get_logits_ith(self.context, -1)
        return np.ctypeslib.as_array(logits, (self.vocabulary_size,)).copy()

    def run_many(self, tokens: list[int], position: int) -> None:
        """Run one token for each of several sequences, all at the same position."""
        batch = self.lib.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i] = token
            batch.pos[i] = position
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = i
            batch.logits[i] = 1
        failed = self.lib.llama_decode(self.context, batch)
        self.lib.llama_batch_free(batch)
        if failed:
            raise SystemExit("llama.cpp could not decode")

    def facts(self) -> dict[str, Any]:
        return {
            "llama_cpp_python": self.lib.__version__,
            "system": self.lib.llama_print_system_info().decode(),
        }


class IkLlamaCpp(Engine):
    """ik_llama.cpp, with its own defaults but the threads."""

    repack = False

    def __init__(self, setup: Setup) -> None:
        assert setup.calls is not None
        assert setup.gguf is not None
        self.calls = ik_llama_cpp.Calls(
            setup.calls, setup.gguf, self.repack, setup.positions, setup.threads
        )
        self.run = self.calls.run
        self.reset = self.calls.clear
        self.truncate = self.calls.truncate


class IkRepacked(IkLlamaCpp):
    """ik_llama.cpp whose weights are laid out anew as they are loaded."""

    repack = True


ENGINES: dict[str, type[Engine]] = {
    OURS: Ours,
    TRANSFORMERS: Transformers,
    LLAMA_CPP: LlamaCpp,
    IK_LLAMA_CPP: IkLlamaCpp,
    IK_REPACKED: IkRepacked,
}


def peak_memory(setup: Setup, prompt: int) -> tuple[int, int]:
    """Load our model, run a prompt at the end of a long context, and a few steps.

    Return the most bytes of anonymous memory that this process had, and the bytes of the
    cache.
    """
    seen = [anonymous_bytes()]
    is_done = threading.Event()

    def watch() -> None:
        while not is_done.wait(0.002):
            seen.append(anonymous_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    ours = Ours(setup)
    ids = [token % ours.model.args.vocab_size for token in range(prompt)]
    ours.run(ids)
    ours.seek(setup.positions - prompt - 8)
    for part in (ids, [0], [1], [2], [3]):
        ours.run(part)
    is_done.set()
    watcher.join()
    return max(seen), ours.context.nbytes


def anonymous_bytes() -> int:
    """Return the resident bytes of this process that belong to no file."""
    text = Path("/proc/self/status").read_text()
    return int(text.partition("RssAnon:")[2].split()[0]) * 1024


if __name__ == "__main__":
    directory, *numbers = sys.argv[1:]
    threads, positions, prompt = map(int, numbers)
    print(*peak_memory(Setup(Path(directory), threads, positions), prompt))
