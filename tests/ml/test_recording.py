"""A replayed step gives the bits of the step itself, at any position, or is run as it is."""

import threading
from collections.abc import Callable

import numpy as np
import pytest

from src import ml
from src.ml import kernel_settings, native, native_attention, native_memory, native_products
from tests.ml.op_checks import sample

K, H, h, D = 2, 4, 6, 24


class Layer:
    """A step with each kernel that a transformer block calls."""

    def __init__(self, dtype: ml.DType = ml.bfloat16) -> None:
        self.cache = ml.KeyValueCache(600, K, h, dtype)
        self.table = ml.polar(ml.ones((600, h // 2)), sample((600, h // 2), ml.float32, seed=5))
        self.norm = sample((D,), dtype, seed=1)
        self.weights = [
            sample((n, D), dtype, seed=n) for n in (H * h, K * h, K * h)
        ]  # queries, keys, values
        self.runs = 0

    def step(self, x: ml.Tensor, position: int) -> ml.Tensor:
        """Returns x plus attention over the normalised x, float32 [T, D]."""
        self.runs += 1
        T = x.shape[0]
        normed = ml.rms_norm(x, self.norm, 1e-5, dtype=self.cache.dtype)
        xq, xk, xv = ml.linear_transformations(normed, self.weights)
        turns = self.table.slice(position, position + T)
        xq = ml.rotary_embedding(xq.reshape(T, H, h), turns)
        xk = ml.rotary_embedding(xk.reshape(T, K, h), turns)
        ml.write_cache(self.cache, position, xk, xv.reshape(T, K, h))
        mixed = ml.attention(xq, self.cache, position).reshape(T, D)
        return ml.add(x, ml.swiglu(mixed, mixed).to(ml.float32))


def bits(x: ml.Tensor) -> bytes:
    return x.numpy().tobytes()


@pytest.mark.parametrize("dtype", [ml.bfloat16, ml.float32], ids=str)
@pytest.mark.parametrize("T", [1, 3])
def test_a_replay_gives_the_bits_of_the_step_at_every_position(dtype: ml.DType, T: int) -> None:
    plain, replayed, replay = Layer(dtype), Layer(dtype), ml.Replay()
    for position in range(0, 540, T):
        x = sample((T, D), ml.float32, seed=position)
        found = replay.run(replayed, replayed.step, x, position)
        assert bits(found) == bits(plain.step(x, position))
    assert replayed.runs == 1


def test_positions_may_be_taken_in_any_order() -> None:
    plain, replayed, replay = Layer(), Layer(), ml.Replay()
    for position in (0, 1, 2, 1, 2, 3, 0, 1):
        x = sample((1, D), ml.float32, seed=position)
        found = replay.run(replayed, replayed.step, x, position)
        assert bits(found) == bits(plain.step(x, position))


def test_the_input_may_be_part_of_a_larger_tensor_and_stays_as_it_is() -> None:
    layer, replay, rows = Layer(), ml.Replay(), sample((4, D), ml.float32)
    before = bits(rows)
    for position in range(4):
        x = rows.slice(position, position + 1)
        expected = bits(Layer().step(x, 0)) if position == 0 else None
        found = bits(replay.run(layer, layer.step, x, position))
        assert expected in (None, found)
    assert bits(rows) == before


def test_a_step_that_computes_outside_of_the_kernels_is_run_each_time() -> None:
    runs = []

    def step(x: ml.Tensor, position: int) -> ml.Tensor:
        runs.append(position)
        return ml.Tensor.from_numpy(x.numpy() + np.float32(position))

    replay, x = ml.Replay(), ml.ones((1, 4))
    results = [replay.run(None, step, x, position).numpy()[0, 0] for position in range(3)]
    assert (runs, results) == ([0, 1, 2], [1.0, 2.0, 3.0])


def test_a_step_with_a_kernel_that_is_not_repeated_is_run_each_time() -> None:
    replay, runs = ml.Replay(), []

    def step(x: ml.Tensor, position: int) -> ml.Tensor:
        runs.append(position)
        return ml.softmax(x)

    for position in range(3):
        replay.run(None, step, ml.ones((1, 4)), position)
    assert runs == [0, 1, 2]


def change_threads(layer: Layer) -> Layer:
    ml.set_num_threads(1 if ml.get_num_threads() > 1 else 2)
    return layer


@pytest.mark.parametrize(
    "change", [change_threads, lambda _: Layer()], ids=["number of threads", "owner"]
)
def test_it_is_recorded_anew_for(change: Callable[[Layer], Layer]) -> None:
    threads, replay, layer, x = ml.get_num_threads(), ml.Replay(), Layer(), ml.ones((1, D))
    try:
        for position in range(3):
            replay.run(layer, layer.step, x, position)
        changed = change(layer)
        before = changed.runs
        for position in range(3, 6):
            replay.run(changed, changed.step, x, position)
        assert changed.runs == before + 1
    finally:
        ml.set_num_threads(threads)


def test_another_form_of_x_is_recorded_anew() -> None:
    replay, layer = ml.Replay(), Layer()
    for T in (1, 2, 1):
        plain = Layer()
        x = sample((T, D), ml.float32, seed=T)
        assert bits(replay.run(layer, layer.step, x, 0)) == bits(plain.step(x, 0))
    assert layer.runs == 3


def test_an_exception_leaves_nothing_of_the_recorder_behind_and_the_next_run_records() -> None:
    replay, layer, x = ml.Replay(), Layer(), ml.ones((1, D))
    allocate, ways = native_memory.allocate, (ml.Tensor.numpy, ml.Tensor.bits)

    def fails(x: ml.Tensor, position: int) -> ml.Tensor:
        layer.step(x, position)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replay.run(layer, fails, x, 0)
    for module in (native, native_attention, native_products):
        assert module.lib is kernel_settings.lib
    assert native_memory.allocate is allocate
    assert (ml.Tensor.numpy, ml.Tensor.bits) == ways
    runs = layer.runs
    for position in range(3):
        replay.run(layer, layer.step, x, position)
    assert layer.runs == runs + 1


def test_what_another_thread_computes_meanwhile_is_not_recorded() -> None:
    replay, layer, plain, x = ml.Replay(), Layer(), Layer(), ml.ones((1, D))
    others: list[bytes] = []

    def step(x: ml.Tensor, position: int) -> ml.Tensor:
        other = threading.Thread(target=lambda: others.append(bits(Layer().step(x, 0))))
        other.start()
        other.join()
        return layer.step(x, position)

    for position in range(3):
        found = replay.run(layer, step, x, position)
        assert bits(found) == bits(plain.step(x, position))
    assert len(others) == 1
    assert layer.runs == 1


def test_two_threads_that_record_at_once_do_not_disturb_each_other() -> None:
    started, go_on = threading.Event(), threading.Event()
    first, second, x = Layer(), Layer(), ml.ones((1, D))
    allocate = native_memory.allocate

    def slow(x: ml.Tensor, position: int) -> ml.Tensor:
        started.set()
        assert go_on.wait(10)
        return first.step(x, position)

    thread = threading.Thread(target=lambda: ml.Replay().run(first, slow, x, 0))
    thread.start()
    assert started.wait(10)
    found = ml.Replay().run(second, second.step, x, 0)
    go_on.set()
    thread.join()
    assert bits(found) == bits(Layer().step(x, 0))
    assert native_memory.allocate is allocate
