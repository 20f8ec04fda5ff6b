"""A Llama inference engine with its own tensor library.

The main packages are `ml` (tensors), `checkpoint` and `tokenizer` (files), `model` (the
network), `inference` (generation) and `cli` (the terminal). All of them use
`installation`, `untrusted`, `memory` and `trace`. The most important names can be
imported from the top-level package:

    from llama_bolts import InferenceEngine, load_model

They are imported lazily, so that the command line can print `--help` without loading
NumPy.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import ml
    from .inference import InferenceEngine, Message, SamplingArgs
    from .ml.errors import LlamaBoltsError
    from .model import InferenceContext, load_adapter, load_model
    from .tokenizer import load_tokenizer

__version__ = "0.2.0"

__all__ = [
    "InferenceContext",
    "InferenceEngine",
    "LlamaBoltsError",
    "Message",
    "SamplingArgs",
    "__version__",
    "load_adapter",
    "load_model",
    "load_tokenizer",
    "ml",
]
_PLACES = {
    **dict.fromkeys(("InferenceEngine", "Message", "SamplingArgs"), "inference"),
    **dict.fromkeys(("LlamaBoltsError", "ml"), "ml"),
    **dict.fromkeys(("InferenceContext", "load_adapter", "load_model"), "model"),
    "load_tokenizer": "tokenizer",
}


def __getattr__(name: str) -> object:
    """Import a public name from the package that defines it."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    package = import_module(f".{_PLACES[name]}", __name__)
    return package if name == "ml" else getattr(package, name)


def __dir__() -> list[str]:
    """Return all names in the module, including those that are not imported yet."""
    return sorted({*globals(), *__all__})
