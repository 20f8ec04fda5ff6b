"""A Llama inference engine with its own tensor library.

The rooms are `ml` (tensors), `checkpoint` and `tokenizer` (files), `model` (the network),
`inference` (generation) and `cli` (the terminal); `outside` and `trace` serve them all. This module
imports none of them.
"""

__version__ = "0.1.0"
