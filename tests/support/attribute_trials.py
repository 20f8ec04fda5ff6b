"""Sets and deletes every public attribute of every public object, and uses the object
after it.

`python -m tests.support.attribute_trials [CLASS...]` forks a process for each class,
prints one line for each, and ends with 1 if a signal ended a process. No value of an
attribute may let a kernel read or write outside of the memory of a tensor or a cache. Any
exception of Python is fine.
"""

import copy
import inspect
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from src import inference, ml, model
from src.inference import BatchEngine, InferenceEngine, Message, SamplingArgs
from src.model import (
    BatchContext,
    CacheMemory,
    InferenceContext,
    LlamaTransformer,
    load_model,
)

BUNDLED = load_model()
ARGS = BUNDLED.args
K = 2
h = 8
BLOCK = ml.BLOCK_POSITIONS
SECONDS = 120  # for one class
[STEP] = InferenceEngine(BUNDLED, 16).generate([1], 1, candidates=2)


_CHANGED = object()


@dataclass
class Trials:
    """How to make a fresh object, and how to use it so that kernels depend on its
    attributes.
    """

    make: Callable[[], Any]
    use: Callable[[Any], object]


def _use_cache(cache: Any) -> None:
    for start in (0, 2 * BLOCK - 1):
        x = ml.ones(1, K, h)
        ml.write_cache(cache, start, x, x)
        ml.attention(ml.ones(1, 2 * K, h), cache, start)
    ml.read_cache(cache, 0, 2 * BLOCK)
    cache.copy_block(1, 0)
    copy.copy(cache)


def _use_spans(spans: Any) -> None:
    cache = ml.KeyValueCache(2 * BLOCK, K, h, ml.float32)
    for T in (3, 1):
        with suppress(ml.ShapeError):
            x = ml.ones(T, K, h)
            ml.write_cache(cache, spans, x, x)
            ml.attention(x, cache, spans)
    copy.copy(spans)


def _pair() -> ml.LowRankPair:
    return ml.LowRankPair(ml.ones(4, 64), ml.ones(64, 4), 0.5)


def _adapter(pair: ml.LowRankPair) -> ml.Adapter:
    return ml.Adapter("a", {"w": pair}, {"w": pair})


def _loaded_adapter() -> model.LoadedAdapter:
    pairs = {"w": _pair()}
    path = Path("a")
    return model.LoadedAdapter("a", pairs, pairs, path, "peft", (4,), ARGS)


def _use_adapter(adapter: Any) -> None:
    weight = ml.ones(64, 64).with_name("w")
    with ml.adapted_rows([(64, 64, ((adapter, 1.0),))]):
        with suppress(ml.ShapeError):
            ml.linear_transformation(ml.ones(64, 64), weight)
        with suppress(ml.TensorError):
            ml.get_rows(weight, ml.zeros(64, dtype=ml.int32))


def _use_tensor(x: Any) -> None:
    for op in (
        lambda: x + x,
        lambda: ml.matmul(x, x.T),
        lambda: x.to(ml.bfloat16),
        x.copy,
        x.numpy,
        lambda: ml.get_rows(x, ml.tensor([x.shape[0] - 1], dtype=ml.int32)),
        lambda: x.reshape(-1).slice(0, x.size),
        lambda: repr(x),
        lambda: ml.softmax(x),
        lambda: ml.linear_transformation(x, x),
        lambda: copy.deepcopy(x),
        x.tolist,
    ):
        with suppress(Exception):
            op()


def _use_quantized(x: Any) -> None:
    for op in (
        x.dequantize,
        lambda: x.rows(0, x.shape[0]),
        lambda: copy.deepcopy(x).dequantize(),
        lambda: ml.get_rows(x, ml.tensor([x.shape[0] - 1], dtype=ml.int32)),
        lambda: ml.linear_transformation(ml.ones(2, x.shape[1]), x),
    ):
        with suppress(Exception):
            op()


def _experts() -> ml.ExpertWeights:
    return ml.ExpertWeights([ml.ones(64, 64)] * 3, [ml.ones(64)] * 3)


def _use_experts(stack: Any) -> None:
    chosen = ml.tensor([[0, 2]], dtype=ml.int32)
    with suppress(Exception):
        hidden = ml.expert_hidden(ml.ones(1, 64), chosen, stack, stack)
        ml.expert_outputs(hidden, chosen, ml.ones(1, 2), stack)


def _nested() -> Any:
    return ml.quantize(ml.ones(8, 256), ml.nf4, double=True).nested


def _use_nested(nested: Any) -> None:
    x = ml.quantize(ml.ones(8, 256), ml.nf4, double=True)
    _use_quantized(ml.QuantizedTensor(ml.nf4, x.shape, x.codes, x.scales, nested))


def _use_dtype(dtype: Any) -> None:
    _use_tensor(ml.Tensor.empty((4, 4), dtype))


def _use_block_dtype(dtype: Any) -> None:
    _use_quantized(ml.quantize(ml.ones(8, 256), dtype))


def _op_call() -> Any:
    calls = list[ml.OpCall]()
    ml.subscribe(calls.append)
    ml.concatenate([ml.ones(2), ml.ones(3)])
    ml.unsubscribe(calls.append)
    return calls[0]


def _use_context(context: Any) -> None:
    for start in (0, 3, context.length, context.sequence_length - 1):
        with suppress(Exception):
            BUNDLED.transformer.forward(context, [1, 2, 3], start)
            context.length = start


def _batch_context() -> Any:
    spans = ml.Spans([(0, 2, [0]), (0, 1, [1])])
    return BatchContext(CacheMemory(ARGS, 64, 2), spans, (1, 1))


def _use_batch_context(context: Any) -> None:
    BUNDLED.transformer.forward(context, [1, 2, 3])


def _use_shared(shared: Any) -> None:
    with suppress(Exception):
        shared.copy_block(0, 1)
    spans = ml.Spans([(0, 2, [0]), (0, 1, [1])])
    _use_batch_context(BatchContext(shared, spans, (1, 1)))


def _use_transformer(transformer: Any) -> None:
    context = InferenceContext(ARGS, 8)
    transformer.forward(context, [1, 2, 3], 0)
    transformer.forward(context, [ARGS.vocab_size - 1], 3)


def _transformer() -> LlamaTransformer:
    return LlamaTransformer(ARGS, BUNDLED.tensors)


def _inner(choose: Callable[[Any], Any]) -> Trials:
    """Return the trials of a part of the network."""
    made = list[Any]()

    def make() -> Any:
        made[:] = [_transformer()]
        return choose(made[0])

    return Trials(make, lambda _: _use_transformer(made[0]))


def _use_args(args: Any) -> None:
    _use_context(InferenceContext(args, 16))


def _use_model(loaded: Any) -> None:
    engine = InferenceEngine(loaded, 16)
    list(engine.generate([1, 2], 2, SamplingArgs(temperature=0.0)))


def _use_engine(engine: Any) -> None:
    list(engine.generate([1, 2], 2, SamplingArgs(temperature=0.0)))
    list(engine.generate([1, 3], 2, SamplingArgs(temperature=0.0)))


def _use_batch_engine(engine: Any) -> None:
    with engine:
        list(engine.submit([1, 2], 2, SamplingArgs(temperature=0.0), time_limit=5))


def _submitted() -> Any:
    return BatchEngine(BUNDLED, sequence_length=16, cache_tokens=BLOCK).submit([1, 2], 2)


def _use_submitted(submitted: Any) -> None:
    submitted._engine.close(1)
    submitted.cancel()


def _use_sampler(sampler: Any) -> None:
    logits = np.arange(100, dtype=np.float32)
    sampler.observe([1, 2, 3])
    sampler.sample(logits, 3)


def _step() -> Any:
    return copy.deepcopy(STEP)


def _unused(_: Any) -> None:
    """Records hold results; no kernel reads them."""


class _Mask:
    def allowed(self) -> Any:
        return np.ones(ARGS.vocab_size, bool)

    def accept(self, token_id: int) -> None: ...


def _use_intervention(intervention: Any) -> None:
    with model.intervene(BUNDLED, intervention):
        BUNDLED.transformer.forward(InferenceContext(ARGS, 16), [1, 2])


def _use_mask(mask: Any) -> None:
    list(InferenceEngine(BUNDLED, 16).generate([1, 2], 2, mask=mask))


def _trials() -> dict[str, Trials]:
    layer = BUNDLED.transformer.layers[0]
    message = Message("user", "Hello")
    return {
        # of src.ml
        "KeyValueCache": Trials(
            lambda: ml.KeyValueCache(2 * BLOCK, K, h, ml.float32), _use_cache
        ),
        "Spans": Trials(lambda: ml.Spans([(0, 2, [0]), (4, 1, [2**40])]), _use_spans),
        "Tensor": Trials(lambda: ml.ones(64, 64), _use_tensor),
        "LowRankPair": Trials(_pair, lambda pair: _use_adapter(_adapter(pair))),
        "Adapter": Trials(lambda: _adapter(_pair()), _use_adapter),
        "QuantizedTensor": Trials(
            lambda: ml.quantize(ml.ones(8, 256), ml.nf4), _use_quantized
        ),
        "NestedScales": Trials(_nested, _use_nested),
        "ExpertWeights": Trials(_experts, _use_experts),
        "DType": Trials(lambda: ml.float32, _use_dtype),
        "BlockDType": Trials(lambda: ml.nf4, _use_block_dtype),
        "OpCall": Trials(_op_call, lambda call: (call.inputs(0), call.scalars)),
        "Generator": Trials(
            ml.Generator, lambda generator: ml.rand(4, generator=generator)
        ),
        # of src.model
        "InferenceContext": Trials(lambda: InferenceContext(ARGS, 16), _use_context),
        "CacheMemory": Trials(lambda: CacheMemory(ARGS, 64, 2), _use_shared),
        "BatchContext": Trials(_batch_context, _use_batch_context),
        "LlamaTransformer": Trials(_transformer, _use_transformer),
        "Model": Trials(lambda: copy.copy(BUNDLED), _use_model),
        "ModelArgs": Trials(lambda: copy.copy(ARGS), _use_args),
        "Source": Trials(lambda: copy.copy(BUNDLED.source), _unused),
        "Intervention": Trials(
            lambda: model.Intervention.zero(BUNDLED, "layers.0.attention.heads[1]"),
            _use_intervention,
        ),
        "LoadedAdapter": Trials(_loaded_adapter, _use_adapter),
        "MemoryForecast": Trials(
            lambda: model.MemoryForecast(ARGS, 64), lambda x: x.check()
        ),
        "RopeScaling": Trials(lambda: model.RopeScaling(8.0, 1.0, 4.0, 8192), _unused),
        "LinearRopeScaling": Trials(lambda: model.LinearRopeScaling(2.0), _unused),
        "YarnRopeScaling": Trials(lambda: model.YarnRopeScaling(2.0, 8), _unused),
        "RopeFactors": Trials(lambda: model.RopeFactors((1.0,) * (h // 2)), _unused),
        type(layer).__name__: _inner(lambda x: x.layers[0]),
        type(layer.attention).__name__: _inner(lambda x: x.layers[0].attention),
        type(layer.feed_forward).__name__: _inner(lambda x: x.layers[0].feed_forward),
        type(layer.ffn_norm).__name__: _inner(lambda x: x.layers[0].ffn_norm),
        # of src.inference
        "InferenceEngine": Trials(lambda: InferenceEngine(BUNDLED, 16), _use_engine),
        "BatchEngine": Trials(
            lambda: BatchEngine(BUNDLED, sequence_length=16, cache_tokens=BLOCK),
            _use_batch_engine,
        ),
        "SubmittedAnswer": Trials(_submitted, _use_submitted),
        "Request": Trials(lambda: inference.Request([1, 2]), _unused),
        "Sampler": Trials(lambda: inference.Sampler(SamplingArgs(seed=1)), _use_sampler),
        "SamplingArgs": Trials(
            lambda: SamplingArgs(seed=1),
            lambda args: _use_sampler(inference.Sampler(args)),
        ),
        "SamplingDefaults": Trials(inference.SamplingDefaults, _unused),
        "TokenMask": Trials(_Mask, _use_mask),
        "Step": Trials(_step, _unused),
        "Choice": Trials(lambda: _step().choice, _unused),
        "Candidate": Trials(lambda: _step().choice.candidates[0], _unused),
        "SamplingStage": Trials(lambda: _step().choice.stages[0], _unused),
        "GenerationStats": Trials(lambda: _step().stats, _unused),
        "Counters": Trials(inference.Counters, _unused),
        "Message": Trials(
            lambda: message, lambda x: [*InferenceEngine(BUNDLED, 64).chat([x], 1)]
        ),
        "ToolCall": Trials(lambda: inference.ToolCall("name", "{}"), _unused),
        "ChatFormat": Trials(
            lambda: copy.copy(inference.CHAT_FORMATS["llama3"]), _unused
        ),
        "ChatTemplate": Trials(lambda: InferenceEngine(BUNDLED, 16).chat_format, _unused),
    }


def _hostile_values(value: Any) -> Iterator[Any]:
    """Yield values for an attribute: sizes beyond any memory, and objects that are too
    small.
    """
    yield from (
        0,
        -1,
        1,
        10**6,
        2**31,
        2**62,
        1.5,
        None,
        "text",
        (),
        (2**40,),
        [10**9] * 3,
    )
    yield from (
        ml.zeros(1),
        ml.zeros(1, dtype=ml.int32),
        np.zeros(1, np.uint8),
        ml.float32,
    )
    yield ml.KeyValueCache(1, K, h, ml.float32)
    yield ml.Spans([(0, 1, [10**6])])
    if isinstance(value, tuple) and value:
        yield value[:1]
        yield value * 2
        yield _enlarged(value)
    if isinstance(value, ml.Tensor) and value.ndim:
        yield value.slice(0, value.shape[0] // 2)
        yield value.reshape(-1)


def _enlarged(value: Any) -> Any:
    """Return tuples with the same structure, and integers that are too large."""
    if isinstance(value, tuple):
        return tuple(map(_enlarged, value))
    return 2**40 if type(value) is int else value


def _overwrite(value: Any) -> None:
    """Set the first element of everything in an attribute that has elements to set."""
    if isinstance(value, tuple):
        for item in value:
            _overwrite(item)
    elif not isinstance(value, ml.Tensor | np.ndarray | dict):
        with suppress(Exception):
            value[0] = 2**40


def _changes(attribute: str, value: Any) -> Iterator[tuple[str, Callable[[Any], None]]]:
    """Yield what is tried with an attribute, and its description."""

    def set_to(new: Any, is_deleted_before: bool) -> Callable[[Any], None]:
        def change(subject: Any) -> None:
            if is_deleted_before:
                delattr(subject, attribute)
            setattr(subject, attribute, new)

        return change

    yield f"del {attribute}", lambda x: delattr(x, attribute)
    yield f"{attribute}[...] = 2**40", lambda x: _overwrite(getattr(x, attribute))
    for new in _hostile_values(value):
        yield f"{attribute} = {new!r:.60}", set_to(new, False)
        yield f"del {attribute}; {attribute} = {new!r:.60}", set_to(new, True)


def public_attributes(subject: object) -> list[str]:
    """Return the names of the attributes of an object that are neither private nor
    methods.
    """
    names = []
    for name in dir(subject):
        own = name in getattr(subject, "__dict__", {})
        if not name.startswith("_") and (
            own or not callable(value_of(subject, name, None))
        ):
            names.append(name)
    return names


def value_of(subject: object, name: str, default: object) -> Any:
    """Return the value of an attribute; the default if it has none or refuses to."""
    with suppress(Exception):
        return getattr(subject, name)
    return default


def run_trials(name: str, trials: Trials) -> None:
    """Run the trials of a class; the file descriptor 1 has each before it runs."""
    for attribute in public_attributes(trials.make()):
        before = value_of(trials.make(), attribute, None)
        for label, change in _changes(attribute, before):
            subject = trials.make()
            value = value_of(subject, attribute, None)
            os.write(1, f"{name}: {label}\n".encode())
            with suppress(Exception):
                change(subject)
                value = _CHANGED
            if value_of(subject, attribute, _CHANGED) is value:
                continue  # refused
            with suppress(Exception):
                trials.use(subject)


def public_classes() -> set[str]:
    """Return the names of the public classes that are no errors."""
    packages = (ml, model, inference)
    members = [getattr(package, name) for package in packages for name in package.__all__]
    return {
        x.__name__ for x in members if inspect.isclass(x) and not issubclass(x, Exception)
    }


def main(names: list[str]) -> int:
    """Run the trials of some classes, or of all; return the exit status."""
    trials = _trials()
    if missing := public_classes() - trials.keys():
        print(f"classes without trials: {', '.join(sorted(missing))}")
        return 1
    status = 0
    for name in names or trials:
        one = trials[name]
        one.use(one.make())  # as it is, without an error
        with tempfile.TemporaryFile() as log:
            child = os.fork()
            if not child:
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)  # the errors that end a thread
                signal.alarm(SECONDS)
                run_trials(name, one)
                os._exit(0)
            _, wait_status = os.waitpid(child, 0)
            log.seek(0)
            lines = [
                x for x in log.read().decode().splitlines() if x.startswith(f"{name}: ")
            ]
        code = os.waitstatus_to_exitcode(wait_status)
        if code:
            status = 1
            print(f"{name}: ended with {code} at: {lines[-1] if lines else 'the start'}")
        else:
            print(f"{name}: {len(lines)} trials")
        sys.stdout.flush()
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
