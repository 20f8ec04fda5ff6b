"""A program that uses the installed package; mypy checks it against the types of it."""

from typing import assert_type

import numpy as np
from llama_bolts import ml
from llama_bolts.inference import InferenceEngine, Message, SamplingArgs, Step
from llama_bolts.model import InferenceContext, Model, load_model
from llama_bolts.tokenizer import Tokenizer, load_tokenizer


def answer(question: str) -> str:
    """Return what the bundled model answers."""
    model = assert_type(load_model(), Model)
    engine = InferenceEngine(model, sequence_length=512)
    text = ""
    for step in engine.chat(
        [Message("user", question)], sampling=SamplingArgs(temperature=0.0)
    ):
        text += assert_type(step, Step).text
    return text


def logits_of(text: str) -> ml.Tensor:
    """Return the logits after a text."""
    model = load_model(quantize="nf4")
    tokenizer = assert_type(model.tokenizer, Tokenizer | None) or load_tokenizer("model")
    context = InferenceContext(model.args, sequence_length=64)
    ids = assert_type(tokenizer.encode(text, bos=True, eos=False), list[int])
    return model.transformer.forward(context, ids, start_pos=0)


tensor = ml.Tensor.from_numpy(np.ones((2, 3), np.float32))
assert_type(ml.softmax(tensor @ tensor.transpose(0, 1)), ml.Tensor)
assert_type(tensor.shape, tuple[int, ...])
InferenceEngine("model")  # type: ignore[arg-type]  # the types are seen: this one is wrong
