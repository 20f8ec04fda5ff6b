"""llama.cpp as an oracle: its C functions, in the library that the package xllamacpp has.

Structures are passed with more room than they have: `..._default_params` fills them, and
only the fields that are named here are looked at. Source: ggml-org/llama.cpp,
include/llama.h.
"""

import ctypes
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest


class _Params(ctypes.Structure):
    _fields_ = [("words", ctypes.c_int32 * 256)]


class _Batch(ctypes.Structure):
    _fields_ = [
        ("n_tokens", ctypes.c_int32),
        ("token", ctypes.POINTER(ctypes.c_int32)),
        ("embd", ctypes.c_void_p),
        ("pos", ctypes.POINTER(ctypes.c_int32)),
        ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    ]


# The first fields of llama_context_params.
_N_CTX = 0
_N_BATCH = 1
_N_UBATCH = 2
_N_THREADS = 7
_N_THREADS_BATCH = 8

_POINTER = ctypes.c_void_p
_LONG = ctypes.c_int64
_INT = ctypes.c_int32
_TEXT = ctypes.c_char_p
_TOKENS = ctypes.POINTER(ctypes.c_int32)
_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "llama_model_default_params": (_Params, []),
    "llama_context_default_params": (_Params, []),
    "llama_model_load_from_file": (_POINTER, [_TEXT, _Params]),
    "llama_init_from_model": (_POINTER, [_POINTER, _Params]),
    "llama_model_get_vocab": (_POINTER, [_POINTER]),
    "llama_model_chat_template": (_TEXT, [_POINTER, _TEXT]),
    "llama_vocab_n_tokens": (_INT, [_POINTER]),
    "llama_vocab_get_add_bos": (ctypes.c_bool, [_POINTER]),
    "llama_vocab_bos": (_INT, [_POINTER]),
    "llama_vocab_eos": (_INT, [_POINTER]),
    "llama_tokenize": (
        _INT, [_POINTER, _TEXT, _INT, _TOKENS, _INT, ctypes.c_bool, ctypes.c_bool],
    ),
    "llama_batch_get_one": (_Batch, [_TOKENS, _INT]),
    "llama_batch_init": (_Batch, [_INT, _INT, _INT]),
    "llama_batch_free": (None, [_Batch]),
    "llama_decode": (_INT, [_POINTER, _Batch]),
    "llama_get_memory": (_POINTER, [_POINTER]),
    "llama_memory_clear": (None, [_POINTER, ctypes.c_bool]),
    "llama_get_logits_ith": (ctypes.POINTER(ctypes.c_float), [_POINTER, _INT]),
    "llama_adapter_lora_init": (_POINTER, [_POINTER, _TEXT]),
    "llama_set_adapters_lora": (
        _INT,
        [
            _POINTER,
            ctypes.POINTER(_POINTER),
            ctypes.c_size_t,
            ctypes.POINTER(ctypes.c_float),
        ],
    ),
    "llama_free": (None, [_POINTER]),
    "llama_model_free": (None, [_POINTER]),
    "llama_log_set": (None, [_POINTER, _POINTER]),
    "ggml_quantize_chunk": (
        ctypes.c_size_t, [_INT, _POINTER, _POINTER, _LONG, _LONG, _LONG, _POINTER],
    ),
}  # fmt: skip
_LOG = ctypes.CFUNCTYPE(None, ctypes.c_int, _TEXT, _POINTER)
_silent = _LOG(lambda *_: None)


def needed() -> None:
    """Skip a test where the package is not installed."""
    if importlib.util.find_spec("xllamacpp") is None:
        pytest.skip("needs the oracle extra: xllamacpp is not installed")


def library() -> Any:
    """Load the library; the first call makes it silent."""
    spec = importlib.util.find_spec("xllamacpp")
    assert spec is not None
    assert spec.origin is not None
    (path,) = Path(spec.origin).parent.glob("xllamacpp*.so")
    lib = ctypes.CDLL(str(path))
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(lib, name)
        function.restype = result
        function.argtypes = arguments
    lib.llama_log_set(ctypes.cast(_silent, _POINTER), None)
    lib.llama_backend_init()
    return lib


def quantize(values: Any, number: int, nbytes: int) -> Any:
    """Make the blocks of a matrix or a stack of matrices, float32 [..., out, in], in the
    type of a number: uint8 [nbytes].
    """
    values = np.ascontiguousarray(values).reshape(-1, values.shape[-1])
    blocks = np.empty(nbytes, np.uint8)
    addresses = values.ctypes.data, blocks.ctypes.data
    assert (
        library().ggml_quantize_chunk(number, *addresses, 0, *values.shape, None)
        == nbytes
    )
    return blocks


class LlamaCpp:
    """A model of a file, with a context of its own; to be used with `with`."""

    def __init__(self, path: Path, positions: int = 256, threads: int = 1) -> None:
        self._lib = lib = library()
        self._model = lib.llama_model_load_from_file(
            str(path).encode(), lib.llama_model_default_params()
        )
        assert self._model, f"llama.cpp refuses {path}"
        params = lib.llama_context_default_params()
        for word in (_N_CTX, _N_BATCH, _N_UBATCH):
            params.words[word] = positions
        params.words[_N_THREADS] = params.words[_N_THREADS_BATCH] = threads
        self._context = lib.llama_init_from_model(self._model, params)
        assert self._context, f"llama.cpp makes no context for {path}"
        self._vocabulary = lib.llama_model_get_vocab(self._model)
        self.vocabulary_size: int = lib.llama_vocab_n_tokens(self._vocabulary)

    def __enter__(self) -> "LlamaCpp":
        return self

    def __exit__(self, *_: object) -> None:
        self._lib.llama_free(self._context)
        self._lib.llama_model_free(self._model)

    def use_adapters(self, *adapters: tuple[Path, float]) -> None:
        """Load LoRA adapters, and use them with a scale for each from now on."""
        handles = (_POINTER * len(adapters))()
        scales = (ctypes.c_float * len(adapters))()
        for place, (path, scale) in enumerate(adapters):
            handle = self._lib.llama_adapter_lora_init(self._model, str(path).encode())
            assert handle, f"llama.cpp refuses {path}"
            handles[place] = handle
            scales[place] = scale
        assert (
            self._lib.llama_set_adapters_lora(
                self._context, handles, len(adapters), scales
            )
            == 0
        )

    @property
    def chat_template(self) -> str | None:
        found = self._lib.llama_model_chat_template(self._model, None)
        return None if found is None else found.decode()

    @property
    def special_ids(self) -> tuple[int, int, bool]:
        """The ids that begin and end a text, and whether texts begin with the first."""
        lib = self._lib
        vocabulary = self._vocabulary
        ids = lib.llama_vocab_bos(vocabulary), lib.llama_vocab_eos(vocabulary)
        return *ids, lib.llama_vocab_get_add_bos(vocabulary)

    def tokenize(self, text: str) -> list[int]:
        """Encode text, none of it as special tokens, without one that begins it."""
        data = text.encode()
        ids = (ctypes.c_int32 * (len(data) + 8))()
        count = self._lib.llama_tokenize(
            self._vocabulary, data, len(data), ids, len(ids), False, False
        )
        assert count >= 0
        return list(ids[:count])

    def clear(self) -> None:
        """Forget all tokens."""
        self._lib.llama_memory_clear(self._lib.llama_get_memory(self._context), True)

    def run(self, ids: Sequence[int]) -> Any:
        """Pass tokens through after those before; return the logits after the last,
        float32 [V].
        """
        tokens = (ctypes.c_int32 * len(ids))(*ids)
        batch = self._lib.llama_batch_get_one(tokens, len(ids))
        assert self._lib.llama_decode(self._context, batch) == 0
        logits = self._lib.llama_get_logits_ith(self._context, -1)
        return np.ctypeslib.as_array(logits, (self.vocabulary_size,)).copy()

    def run_each(self, ids: Sequence[int]) -> Any:
        """Pass tokens through one by one; return the logits after each, float32 [T,
        V].
        """
        return np.stack([self.run([token]) for token in ids])

    def run_chunk(self, ids: Sequence[int], first: int) -> Any:
        """Pass tokens through from an empty cache; return the logits after each from
        `first` on.

        They are float32 [T - first, V].
        """
        lib = self._lib
        self.clear()
        batch = lib.llama_batch_init(len(ids), 0, 1)
        try:
            batch.n_tokens = len(ids)
            for place, token in enumerate(ids):
                batch.token[place] = token
                batch.pos[place] = place
                batch.n_seq_id[place] = 1
                batch.seq_id[place][0] = 0
                batch.logits[place] = place >= first
            assert lib.llama_decode(self._context, batch) == 0
            shape = (self.vocabulary_size,)
            rows = [
                np.ctypeslib.as_array(
                    lib.llama_get_logits_ith(self._context, place), shape
                ).copy()
                for place in range(first, len(ids))
            ]
        finally:
            lib.llama_batch_free(batch)
        return np.stack(rows)
