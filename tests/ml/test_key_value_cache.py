"""The cache's sizes, its layout and what it refuses; and sequences whose blocks share one
cache.
"""

import pickle

import numpy as np
import pytest

from src import ml
from tests.ml.op_checks import EVERY_CACHE_DTYPE, sample

BLOCK = ml.BLOCK_POSITIONS
H = 6
K = 2
h = 8


@EVERY_CACHE_DTYPE
def test_sizes_are_rounded_up_to_groups_and_counted_before_anything_is_allocated(dtype):
    words = 6 * dtype.itemsize // 4
    for positions, capacity in ((1, 16), (16, 16), (17, 32), (100, 112)):
        cache = ml.KeyValueCache(positions, 3, 6, dtype)
        assert (cache.positions, cache.capacity) == (positions, capacity)
        assert cache.keys.shape == (3, capacity // 16, words, 16, 6 // words)
        assert cache.values.shape == (3, capacity, 6)
        assert cache.nbytes == 2 * 3 * 6 * capacity * dtype.itemsize
        assert cache.nbytes == ml.KeyValueCache.bytes_for(positions, 3, 6, dtype)
        assert cache.keys.data_pointer % 64 == cache.values.data_pointer % 64 == 0


@EVERY_CACHE_DTYPE
def test_what_is_written_is_read_back_bit_for_bit_as_a_copy(dtype):
    cache = ml.KeyValueCache(50, 2, 6, dtype)
    zeros = ml.zeros(50, 2, 6, dtype=dtype)
    xk, xv = (sample((2, 50, 6), dtype, seed).transpose(0, 1) for seed in (0, 1))
    for start, stop in ((0, 1), (1, 20), (20, 50)):
        ml.write_cache(cache, start, xk.slice(start, stop), xv.slice(start, stop))
    places = (0, 50), (0, 0), (3, 9), (15, 17), (16, 32), (49, 50), (50, 50)
    read = [ml.read_cache(cache, start, stop) for start, stop in places]
    ml.write_cache(cache, 0, zeros, zeros)
    for (start, stop), (keys, values) in zip(places, read, strict=True):
        np.testing.assert_array_equal(keys.bits(), xk.bits()[start:stop])
        np.testing.assert_array_equal(values.bits(), xv.bits()[start:stop])


def test_a_write_from_the_cache_into_itself_is_refused():
    cache = ml.KeyValueCache(8, 2, 4, ml.float32)
    values = cache.values
    own = ml.Tensor(values.storage, (2, 2, 4), (32, 16, 4), ml.float32, "", values.offset)
    with pytest.raises(ml.TensorError, match="must not share memory with the cache"):
        ml.write_cache(cache, 0, own, sample((2, 2, 4)))


@pytest.mark.parametrize("name", ml.KeyValueCache.__slots__)
def test_no_attribute_can_be_changed(name: str) -> None:
    cache = ml.KeyValueCache(20, 2, 8, ml.float32)
    before = getattr(cache, name)
    with pytest.raises(AttributeError, match=rf"^\[KeyValueCache\] {name} is read-only$"):
        setattr(cache, name, 10**9)
    with pytest.raises(AttributeError, match=rf"^\[KeyValueCache\] {name} is read-only$"):
        delattr(cache, name)
    assert getattr(cache, name) is before


# ---- q8_0 ------------------------------------------------------------------------------


def rounded_to_q8_0(x):
    rows = x.contiguous().to(ml.float32).reshape(-1, x.shape[-1])
    return ml.quantize(rows, "q8_0").dequantize(ml.float32).reshape(*x.shape).numpy()


@EVERY_CACHE_DTYPE
def test_a_cache_in_q8_0_has_the_elements_of_quantized_rows(dtype):
    cache = ml.KeyValueCache(50, 2, 96, "q8_0")
    plain = ml.KeyValueCache(50, 2, 96, ml.bfloat16)
    assert cache.dtype is ml.CACHE_Q8_0
    assert cache.nbytes == ml.KeyValueCache.bytes_for(50, 2, 96, "q8_0")
    assert cache.nbytes == plain.nbytes * 34 / 64
    xk, xv = (sample((2, 50, 96), dtype, seed).transpose(0, 1) for seed in (0, 1))
    for start, stop in ((0, 1), (1, 20), (20, 50)):
        ml.write_cache(cache, start, xk.slice(start, stop), xv.slice(start, stop))
    for start, stop in ((0, 50), (0, 0), (3, 9), (15, 17), (49, 50)):
        for x, expected in zip(ml.read_cache(cache, start, stop), (xk, xv), strict=True):
            assert x.dtype is ml.float32
            np.testing.assert_array_equal(x, rounded_to_q8_0(expected)[start:stop])
    copy = pickle.loads(pickle.dumps(cache))
    np.testing.assert_array_equal(copy.stored_rows(0, 50), cache.stored_rows(0, 50))


@pytest.mark.parametrize("dtype", [ml.bfloat16, ml.float32, ml.CACHE_Q8_0], ids=str)
@pytest.mark.parametrize("ring", [None, 2])
def test_stored_rows_are_the_same_in_another_cache(dtype, ring):
    first = ml.KeyValueCache(700, 2, 32, dtype, ring)
    second = ml.KeyValueCache(700, 2, 32, dtype, ring)
    x = sample((700, 2, 32), ml.float32 if dtype is ml.CACHE_Q8_0 else dtype)
    for start, stop in ((0, 300), (300, 600), (600, 700)):
        ml.write_cache(first, start, x.slice(start, stop), x.slice(start, stop))
    rows = first.stored_rows(450, 700)
    assert rows.shape == (250, 2, 2, ml.KeyValueCache.row_bytes(32, dtype))
    second.store_rows(450, rows)
    for x, expected in zip(
        ml.read_cache(second, 450, 700), ml.read_cache(first, 450, 700), strict=True
    ):
        np.testing.assert_array_equal(x.bits(), expected.bits())
    with pytest.raises(ml.IndexOutOfRangeError, match=r"^\[store_rows\]"):
        second.store_rows(451, rows)
    with pytest.raises(ml.ShapeError, match=r"^\[store_rows\] rows.shape must equal"):
        second.store_rows(0, rows[..., :-1])


# ---- spans -----------------------------------------------------------------------------


def fill(cache, spans, dtype, seed):
    """Writes the keys and values of all positions of some sequences, in one call."""
    T = sum(count for _, count, _ in spans)
    xk = sample((T, K, h), dtype, seed=seed)
    xv = sample((T, K, h), dtype, seed=seed + 1)
    ml.write_cache(cache, ml.Spans(spans), xk, xv)
    return xk, xv


def test_sequences_in_blocks_in_q8_0_have_the_bits_of_contiguous_ones():
    shared = ml.KeyValueCache(4 * BLOCK, K, 32, "q8_0")
    alone = ml.KeyValueCache(300, K, 32, "q8_0")
    x = sample((300, K, 32), ml.bfloat16, seed=3)
    ml.write_cache(shared, ml.Spans([(0, 300, [3, 1])]), x, x)
    ml.write_cache(alone, 0, x, x)
    shared.copy_block(3, 0)
    xq = sample((5, H, 32), ml.bfloat16, seed=9)
    expected = ml.attention(xq, alone, 295).numpy()
    for first in (3, 0):
        result = ml.attention(xq, shared, ml.Spans([(295, 5, [first, 1])])).numpy()
        np.testing.assert_array_equal(result, expected)


@EVERY_CACHE_DTYPE
def test_sequences_in_blocks_have_the_bits_of_contiguous_ones(dtype):
    lengths = (1, 255, 257, 700)
    tables = ([6], [0], [9, 2], [7, 1, 4])
    shared = ml.KeyValueCache(10 * BLOCK, K, h, dtype)
    whole = [(0, length, table) for length, table in zip(lengths, tables, strict=True)]
    xk, xv = fill(shared, whole, dtype, 3)
    alone = []
    row = 0
    for length in lengths:
        cache = ml.KeyValueCache(length, K, h, dtype)
        ml.write_cache(cache, 0, xk.slice(row, row + length), xv.slice(row, row + length))
        alone.append(cache)
        row += length
    counts = (1, 2, 257, 30)
    xq = sample((sum(counts), H, h), dtype, seed=9)
    spans = [
        (length - count, count, table)
        for length, count, table in zip(lengths, counts, tables, strict=True)
    ]
    together = ml.attention(xq, shared, ml.Spans(spans)).numpy()
    row = 0
    for cache, (start, count, _) in zip(alone, spans, strict=True):
        one = ml.attention(xq.slice(row, row + count), cache, start).numpy()
        np.testing.assert_array_equal(together[row : row + count], one)
        row += count
    for block, at in ((6, 0), (9, 256), (4, 256 + 257 + 512)):  # where the tokens went
        keys, values = ml.read_cache(shared, block * BLOCK, block * BLOCK + 1)
        np.testing.assert_array_equal(keys.numpy(), xk.numpy()[at : at + 1])
        np.testing.assert_array_equal(values.numpy(), xv.numpy()[at : at + 1])


@pytest.mark.parametrize("dtype", [ml.bfloat16, "q8_0"])
def test_a_rank_without_heads_has_an_empty_cache(dtype):
    cache = ml.KeyValueCache(2 * BLOCK, 0, 32, dtype)
    cache.copy_block(1, 0)
    assert [x.shape for x in cache.rows(0, 3)] == [(3, 0, 32)] * 2
    assert cache.stored_rows(0, 3).size == 0


def test_a_block_is_copied_whole():
    cache = ml.KeyValueCache(3 * BLOCK, K, h, ml.bfloat16)
    fill(cache, [(0, 3 * BLOCK, [0, 1, 2])], ml.bfloat16, 5)
    before = [x.numpy().copy() for x in ml.read_cache(cache, 0, 3 * BLOCK)]
    cache.copy_block(2, 0)
    for x, old in zip(ml.read_cache(cache, 0, 3 * BLOCK), before, strict=True):
        np.testing.assert_array_equal(x.numpy()[:BLOCK], old[2 * BLOCK :])
        np.testing.assert_array_equal(x.numpy()[BLOCK:], old[BLOCK:])
    for pair in ((3, 0), (0, 3), (-1, 0)):
        with pytest.raises(
            ml.ShapeError, match=r"\[copy_block\] blocks must be in \[0, 3\)"
        ):
            cache.copy_block(*pair)
    with pytest.raises(ml.ShapeError, match="must be integers"):
        cache.copy_block(0.0, 1)


def test_spans_that_leave_their_blocks_are_refused():
    assert ml.Spans([(255, 1, [0])]).tokens == 1
    outside = (
        (-1, 1, [0]),
        (0, 0, [0]),
        (0, 257, [0]),
        (255, 2, [0]),
        (0, 1, []),
        (0, 1, [-1]),
    )
    for span in outside:
        with pytest.raises(
            ml.ShapeError, match=r"^\[Spans\] start_pos and blocks must be >= 0"
        ):
            ml.Spans([(0, 1, [0]), span])
    with pytest.raises(ml.ShapeError, match="must be integers"):
        ml.Spans([(0.0, 1, [0])])


@pytest.mark.parametrize("integer", [np.int8, np.uint8, np.int64, int])
def test_the_numbers_that_are_checked_are_those_that_are_used(integer):
    spans = ml.Spans(
        [(250, integer(6), [integer(0)]), (integer(100), integer(127), (integer(1),))]
    )
    assert spans.spans == ((250, 6, (0,)), (100, 127, (1,)))
    assert spans.parts == ((0, 6, 250, 256), (6, 127, 100, 256))
    assert {type(x) for part in spans.parts for x in part} == {int}
    assert (spans.tokens, spans.capacity) == (133, 512)
    for start_pos, count in ((255, integer(3)), (integer(100), 200)):
        text = rf"{start_pos} \+ {count} > 256$"
        with pytest.raises(ml.ShapeError, match=text):
            ml.Spans([(start_pos, count, [0])])
    cache = ml.KeyValueCache(3 * BLOCK, K, h, ml.float32)
    fill(cache, [(0, 3 * BLOCK, [0, 1, 2])], ml.float32, 5)
    cache.copy_block(integer(2), integer(0))
    keys, values = ml.read_cache(cache, 0, 1)
    for x, y in zip(
        ml.read_cache(cache, 2 * BLOCK, 2 * BLOCK + 1), (keys, values), strict=True
    ):
        assert x.tolist() == y.tolist()
    assert (
        ml.KeyValueCache(integer(100), integer(127), integer(2), "float32").heads == 127
    )


def test_a_write_at_a_narrow_integer_is_seen_by_an_observer():
    calls = []
    ml.subscribe(calls.append)
    try:
        x = ml.ones(100, K, h)
        ml.write_cache(ml.KeyValueCache(300, K, h, ml.float32), np.int8(100), x, x)
    finally:
        ml.unsubscribe(calls.append)
    assert calls[0].results[0].shape == (100, K, h)


def test_a_block_whose_positions_no_address_counts_is_refused():
    most = (2**63 - 1) // BLOCK
    assert ml.Spans([(0, 1, [most - 1])]).capacity == most * BLOCK
    for block in (most, 2**63, 2**70):
        with pytest.raises(
            ml.ShapeError, match=rf"^\[Spans\] blocks must be < {most}: {block}$"
        ):
            ml.Spans([(0, 1, [block])])


@pytest.mark.parametrize(
    "spans", [5, None, [5], [(0, 1)], [(0, 1, 2)], [(0, 1, [0], 3)], "abc"]
)
def test_what_is_no_sequence_of_spans_is_refused(spans):
    with pytest.raises(
        ml.ShapeError, match=r"^\[Spans\] (spans must be a sequence|numbers must be)"
    ):
        ml.Spans(spans)


def test_spans_of_other_tokens_or_beyond_the_cache_are_refused():
    cache = ml.KeyValueCache(600, K, h, ml.float32)
    x = sample((2, K, h), ml.float32)
    xq = sample((2, H, h), ml.float32)
    fits = ml.Spans([(0, 1, [1]), (0, 1, [0])])
    ml.write_cache(cache, fits, x, x)
    ml.attention(xq, cache, fits)
    for spans in (
        ml.Spans([(0, 1, [0])]),
        ml.Spans([(0, 1, [0]), (0, 1, [2])]),
        ml.Spans([]),
    ):
        with pytest.raises(
            ml.ShapeError, match=r"^\[write_cache\] start_pos must be of xk"
        ):
            ml.write_cache(cache, spans, x, x)
        with pytest.raises(
            ml.ShapeError, match=r"^\[attention\] start_pos must be of xq"
        ):
            ml.attention(xq, cache, spans)
