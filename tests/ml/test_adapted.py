"""Low-rank changes of products and look-ups, for the rows that they belong to."""

import threading

import numpy as np
import pytest

from src import ml
from src.ml import Adapter, LowRankPair, ShapeError, adapted_rows

T = 7
IN = 96
OUT = 80
DTYPES = [ml.float32, ml.bfloat16]


def random(*shape: int, seed: int = 0, dtype: ml.DType = ml.float32) -> ml.Tensor:
    values = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
    return ml.Tensor.from_numpy(values).to(dtype)


def adapter(seed: int, rank: int = 5, name: str = "w", scale: float = 0.75) -> Adapter:
    a = random(rank, IN, seed=seed)
    pair = LowRankPair(a, random(OUT, rank, seed=seed + 1), scale)
    return Adapter(f"adapter {seed}", {name: pair}, {})


def exact(x: ml.Tensor, weight: ml.Tensor, *adapters: tuple[Adapter, float]) -> object:
    """Returns the product in float64, the terms of the adapters in order."""
    wide, w = (t.to(ml.float32).numpy().astype(np.float64) for t in (x, weight))
    result = wide @ w.T
    for each, factor in adapters:
        pair = each.products["w"]
        change = (wide @ pair.a.numpy().T.astype(np.float64)) @ pair.b.numpy().T
        result += pair.scale * factor * change
    return result


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_product_has_the_changes_of_its_adapters_in_order(dtype: ml.DType) -> None:
    x = random(T, IN, dtype=dtype)
    weight = random(OUT, IN, seed=9, dtype=dtype).with_name("w")
    adapters = ((adapter(1), 1.0), (adapter(3, rank=64), -0.5))
    with adapted_rows([(T, T, adapters)]):
        wide = ml.linear_transformation(x, weight, ml.float32)
        narrow = ml.linear_transformation(x, weight)
    np.testing.assert_allclose(wide.numpy(), exact(x, weight, *adapters), atol=2e-3)
    # The sum is rounded once.
    assert narrow.dtype is dtype
    np.testing.assert_array_equal(narrow.bits(), wide.to(dtype).bits())
    plain = ml.linear_transformation(x, weight, ml.float32)
    assert np.abs(plain.numpy() - wide.numpy()).max() > 10


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_each_row_has_the_bits_that_it_has_alone(dtype: ml.DType) -> None:
    x = random(T, IN, dtype=dtype)
    weights = [
        random(OUT, IN, seed=9, dtype=dtype).with_name("w"),
        random(16, IN, seed=8, dtype=dtype).with_name("v"),
    ]
    first, second = adapter(1), adapter(3)
    rows = [
        ((first, 1.0),), (), ((second, 2.0),), ((first, 1.0), (second, 2.0)), (),
        ((first, 1.0),), ((first, 0.5),),
    ]  # fmt: skip
    with adapted_rows([(1, 1, adapters) for adapters in rows]):
        together = ml.linear_transformations(x, weights)
    for at, adapters in enumerate(rows):
        with adapted_rows([(1, 1, adapters)]):
            alone = ml.linear_transformations(x[at : at + 1], weights)
        for whole, row in zip(together, alone, strict=True):
            np.testing.assert_array_equal(whole.bits()[at], row.bits()[0])
        if not adapters:
            plain = ml.linear_transformations(x[at : at + 1], weights)
            np.testing.assert_array_equal(together[0].bits()[at], plain[0].bits()[0])


def test_rows_whose_logits_are_wanted_have_their_own_adapters() -> None:
    first = ((adapter(1), 1.0),)
    weight = random(OUT, IN, seed=9).with_name("w")
    x = random(3, IN)
    with adapted_rows([(4, 1, first), (2, 0, ()), (3, 2, ())]):
        found = ml.linear_transformation(x, weight).numpy()
    np.testing.assert_allclose(found[:1], exact(x[:1], weight, *first), atol=1e-3)
    plain = ml.linear_transformation(x, weight).numpy()
    np.testing.assert_array_equal(found[1:], plain[1:])


def test_another_number_of_rows_is_refused() -> None:
    weight = random(OUT, IN).with_name("w")
    parts = [(4, 1, ((adapter(1), 1.0),)), (2, 1, ())]
    rule = r"\[adapted_rows\] x.shape\[0\] must equal the rows of the pass: 5 != 2 or 6"
    with adapted_rows(parts):
        with pytest.raises(ShapeError, match=rule):
            ml.linear_transformation(random(5, IN), weight)
        # A weight that no adapter changes has any number of rows.
        ml.linear_transformation(random(5, IN), weight.with_name("other"))


def test_a_change_of_another_shape_is_refused() -> None:
    pair = LowRankPair(random(2, IN), random(1, 2), 1.0)
    weight = random(OUT, IN).with_name("w")
    with (
        adapted_rows([(T, T, ((Adapter("a", {"w": pair}, {}), 1.0),))]),
        pytest.raises(
            ShapeError, match=r"the matrices of an adapter must fit its weight"
        ),
    ):
        ml.linear_transformation(random(T, IN), weight)


@pytest.mark.parametrize("dtype", [ml.bfloat16, ml.float32, None], ids=str)
def test_a_look_up_has_the_changes_of_its_adapters(dtype: ml.DType | None) -> None:
    plain = random(30, OUT, seed=4).to(ml.bfloat16)
    table = ml.quantize(plain, "nf4") if dtype is None else plain.to(dtype)
    table = table.with_name("table")
    pair = LowRankPair(random(30, 6, seed=5), random(OUT, 6, seed=6), 0.5)
    ids = ml.tensor([3, 29, 3, 0], dtype=ml.int32)
    adapters = ((Adapter("a", {}, {"table": pair}), 2.0),)
    with adapted_rows([(1, 1, ()), (3, 3, adapters)]):
        found = ml.get_rows(table, ids)
    before = ml.get_rows(table, ids, ml.float32).numpy()
    change = pair.a.numpy()[[29, 3, 0]] @ pair.b.numpy().T
    np.testing.assert_array_equal(found.bits()[:1], ml.get_rows(table, ids).bits()[:1])
    assert found.dtype is (ml.float32 if dtype is ml.float32 else ml.bfloat16)
    expected = before[1:] + change
    difference = found.to(ml.float32).numpy()[1:] - expected
    bound = 1e-5 if dtype is ml.float32 else 2.0**-8
    assert (np.abs(difference) <= bound * np.abs(expected) + 1e-5).all()


def test_adapters_are_active_in_their_thread_and_block_only() -> None:
    weight = random(OUT, IN).with_name("w")
    x = random(T, IN)
    plain = ml.linear_transformation(x, weight).numpy()
    found = []
    with adapted_rows([(T, T, ((adapter(1), 1.0),))]):
        with adapted_rows([(T, T, ())]):
            found.append(ml.linear_transformation(x, weight).numpy())
        thread = threading.Thread(
            target=lambda: found.append(ml.linear_transformation(x, weight).numpy())
        )
        thread.start()
        thread.join()
        assert (ml.linear_transformation(x, weight).numpy() != plain).any()
    found.append(ml.linear_transformation(x, weight).numpy())
    for each in found:
        np.testing.assert_array_equal(each, plain)


def test_an_error_ends_the_adapters_too() -> None:
    weight = random(OUT, IN).with_name("w")
    with (
        pytest.raises(ShapeError),
        adapted_rows([(T, T, ((adapter(1), 1.0),))]),
    ):
        ml.linear_transformation(random(T, IN + 1), weight)
    plain = ml.linear_transformation(random(T, IN), weight)
    assert plain.shape == (T, OUT)


def test_parts_of_one_matrix_share_the_first_product() -> None:
    x = random(T, IN)
    whole = random(OUT, IN, seed=2)
    pair = LowRankPair(random(4, IN, seed=3), random(OUT, 4, seed=4), 1.0)
    cuts = {"p": (0, 50), "q": (50, 80)}
    pairs = {n: LowRankPair(pair.a, pair.b[i:j], 1.0) for n, (i, j) in cuts.items()}
    weights = [whole[i:j].contiguous().with_name(n) for n, (i, j) in cuts.items()]
    with adapted_rows([(T, T, ((Adapter("a", pairs, {}), 1.0),))]):
        parts = ml.linear_transformations(x, weights)
    with adapted_rows([(T, T, ((Adapter("a", {"w": pair}, {}), 1.0),))]):
        joined = ml.linear_transformation(x, whole.with_name("w"))
    found = np.concatenate([part.numpy() for part in parts], axis=1)
    np.testing.assert_array_equal(found, joined.numpy())
