"""Merging the shards of one model, and refusing what is not one model."""

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from src import ml
from src.checkpoint import CheckpointError, FileMemoryError
from src.checkpoint.shards import MergedShards, check_shards, merge_shards
from src.memory import readable_bytes
from src.model.sources.meta import args_from_params
from tests.checkpoint.refusals import refusal_of
from tests.support.pth_writer import random_tensor, split_tensor, whole

# Sizes that all differ: D 24, Hh 24, Kh 12, F 72, V 40.
PARAMS = {
    "dim": 24,
    "n_layers": 2,
    "n_heads": 4,
    "n_kv_heads": 2,
    "vocab_size": 40,
    "multiple_of": 24,
    "norm_eps": 1e-5,
}
SIZES = {"D": 24, "Hh": 24, "Kh": 12, "F": 72, "V": 40}
WQ = "layers.0.attention.wq.weight"
W2 = "layers.1.feed_forward.w2.weight"


Arrays = dict[str, "np.ndarray[Any, Any]"]


def model(dtype: Any = ml_dtypes.bfloat16) -> Arrays:
    shapes = args_from_params(PARAMS).tensor_shapes
    return {
        name: whole(random_tensor(name, shape, np.dtype(dtype), 1))
        for name, shape in shapes.items()
    }


def split(arrays: Mapping[str, Any], count: int, embeddings: int = 0) -> list[Arrays]:
    shards: list[Arrays] = [{} for _ in range(count)]
    for name, array in arrays.items():
        for shard, piece in zip(
            shards, split_tensor(name, array, count, embeddings), strict=True
        ):
            shard[name] = np.ascontiguousarray(piece)
    return shards


def tensors(shards: list[Arrays]) -> list[dict[str, ml.Tensor]]:
    return [
        {name: ml.Tensor.from_numpy(array, name) for name, array in shard.items()}
        for shard in shards
    ]


def check(shards: list[Arrays], layers: int = 2, **changes: int | None) -> None:
    labels = [f"consolidated.{number:02d}.pth" for number in range(len(shards))]
    sizes = {
        letter: size for letter, size in (SIZES | changes).items() if size is not None
    }
    assert check_shards(tensors(shards), labels, layers, sizes) == SIZES


def refused(
    shards: list[Arrays], words: str, layers: int = 2, **changes: int | None
) -> str:
    """Check shards that are refused, and return the text of it, which matches `words`."""
    return refusal_of(lambda: check(shards, layers, **changes), match=words)


def merged(shards: list[Arrays]) -> dict[str, ml.Tensor]:
    return merge_shards(tensors(shards), 2, SIZES)


@pytest.mark.parametrize("embeddings", [0, 1])
def test_a_part_of_a_merged_tensor_is_that_part_of_the_model(embeddings: int) -> None:
    arrays = model()
    shards = split(arrays, 4, embeddings)
    # As where a model has fewer key and value heads than shards.
    kept_twice = split(arrays, 2)
    for name in arrays:
        if ".wk." in name or ".wv." in name:
            for number, shard in enumerate(shards):
                shard[name] = kept_twice[number // 2][name]
    one_by_one = MergedShards(tensors(shards), 2, SIZES)
    assert len(one_by_one) == len(arrays)
    assert "none" not in one_by_one
    for name, array in arrays.items():
        assert one_by_one[name].numpy().tobytes() == array.tobytes()
        for axis in range(array.ndim):
            size = array.shape[axis]
            for start, stop in (
                (0, size),
                (0, size // 4),
                (size // 4, size // 2),
                (1, size - 1),
            ):
                part = one_by_one.part(name, axis, (start, stop))
                assert part.shape == array.take(range(start, stop), axis).shape
                assert (
                    part.numpy().tobytes()
                    == array.take(range(start, stop), axis).tobytes()
                )


def test_only_rows_that_one_shard_has_are_not_copied() -> None:
    shards = tensors(split(model(), 2))
    one_by_one = MergedShards(shards, 2, SIZES)
    second = one_by_one.part(WQ, 0, (13, 20))  # of 12 rows in each
    assert second.data_pointer == shards[1][WQ][1].data_pointer
    for part in (
        one_by_one.part(WQ, 0, (11, 20)),
        one_by_one.part(WQ, 1, (0, 4)),
        one_by_one[WQ],
    ):
        assert not any(
            np.shares_memory(part.numpy(), shard[WQ].numpy()) for shard in shards
        )
    norm = merge_shards(shards, 2, SIZES)["norm.weight"]  # which both shards have
    assert norm.data_pointer != shards[0]["norm.weight"].data_pointer


def test_a_copy_beyond_free_memory_is_refused_unmade(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arrays = model(np.float32)
    needed = sum(array.nbytes for array in arrays.values())
    shards = split(arrays, 2)
    monkeypatch.setattr("src.memory.available_memory", lambda: needed)
    merged(shards)
    monkeypatch.setattr("src.memory.available_memory", lambda: needed - 1)
    with pytest.raises(FileMemoryError) as caught:
        merged(shards)
    assert str(caught.value) == (
        f"shards: memory: expected at most {readable_bytes(needed - 1)} available, got "
        f"{readable_bytes(needed)} for a merged copy of 2 shards"
    )


def test_parts_may_be_views_that_are_not_contiguous() -> None:
    arrays = model(np.float32)
    shards = [shard | {WQ: np.asfortranarray(shard[WQ])} for shard in split(arrays, 2)]
    assert merged(shards)[WQ].numpy().tobytes() == arrays[WQ].tobytes()


def test_replicated_tensors_must_be_equal_to_the_bit() -> None:
    table = {"rope.freqs": np.arange(3, dtype=np.float32)}  # it is kept once
    shards = split(model(np.float32) | table, 2)
    check(shards)
    shards[0]["norm.weight"][3] = shards[1]["norm.weight"][3] = np.nan
    assert merged(shards)["rope.freqs"].shape == (3,)
    shards[1]["norm.weight"] = shards[1]["norm.weight"].copy()
    shards[1]["norm.weight"][5] += 1
    with pytest.raises(CheckpointError, match=r"shard 01: tensor 'norm\.weight': values"):
        merged(shards)


def test_shards_with_other_names_or_dtypes_are_refused() -> None:
    table = {"rope.freqs": np.arange(3, dtype=np.float32)}
    first, second = split(model(), 2)
    rule = (
        "01.pth: names, dtypes and shapes: expected the same as in consolidated.00.pth, got "
        "others of"
    )
    half = second | {WQ: second[WQ].astype(np.float16)}
    refused([first, half], rf"{rule} '{WQ}' \(1 in all\)")
    refused([first | table, second], rule)
    refused([first | table, second | {"rope.freqs": np.zeros(4, np.float32)}], rule)
    refused(
        [first, {name: second[name] for name in second if name != "output.weight"}], rule
    )


def test_whole_and_tied_models_pass_the_check() -> None:
    check([model()])
    tied = model()
    del tied["output.weight"]
    check([tied])
    check([model()], V=None, F=None)
    check(split(model(), 2), V=None, F=None)


def test_missing_and_extra_tensors_are_listed_up_to_five_and_counted() -> None:
    arrays = {
        name: array for name, array in model().items() if not name.startswith("layers.1.")
    }
    text = refused([arrays], r"\(9 in all\)")
    assert text.startswith("consolidated.00.pth: tensors: expected 21 tensors")
    assert text.count("'layers.1.") == 5
    refused([model()], r"also 'layers\.1\..* \(9 in all\)", layers=1)


@pytest.mark.parametrize("shape", [(0, 24), (24, 0), (7, 24), (24,)])
def test_a_first_weight_that_gives_no_count_is_a_wrong_shape(
    shape: tuple[int, ...],
) -> None:
    arrays = model() | {WQ: np.ones(shape, np.float32)}
    refused([arrays], rf"'{WQ}' \[.*\] instead of \[24, 24\]")


@pytest.mark.parametrize("shape", [(6, 24), ()])
def test_shards_that_have_too_few_heads_are_refused(shape: tuple[int, ...]) -> None:
    """Heads are stored in several shards where there are more shards, never fewer."""
    heads = {name: np.zeros(shape, np.float32) for name in model() if ".wk." in name}
    shards = [shard | heads for shard in split(model(np.float32), 2)]
    words = r"wk.weight' \[.*\] instead of \[12, 24\]"
    refused(shards, words, Kh=24, h=6)


def test_sizes_that_the_parameters_leave_open_must_agree_among_the_tensors() -> None:
    arrays = model()
    cut = arrays | {"output.weight": arrays["output.weight"][:-1]}
    refused([cut], r"'output\.weight' \[39, 24\] instead of \[40, 24\]", V=None)
    cut = arrays | {W2: arrays[W2][:, :-1]}
    refused([cut], r"\[24, 71\] instead of \[24, 72\]", F=None)
    empty = {
        name: arrays[name][:0] for name in ("tok_embeddings.weight", "output.weight")
    }
    refused([arrays | empty], r"\[0, 24\]", V=None)


def test_one_shard_of_several_alone_is_refused_naming_the_missing() -> None:
    shards = split(model(), 4)
    refused(shards[:1], r"expected 4, got 1,.* missing 01, 02, 03 \(3 in")
    refused(shards[:2], r"expected 4, got 2, .* missing 02, 03 \(2 in all\)")
    refused([model(), model()], "expected 1, got 2")


def test_a_first_weight_that_was_cut_in_a_later_shard_is_a_wrong_shape_of_that_shard() -> (
    None
):
    shards = split(model(), 2)
    check(shards)
    shards[1][WQ] = shards[1][WQ][:6]  # rows of which four shards would make the whole
    text = refused(shards, r"^consolidated.01.pth: shapes: ")
    assert f"'{WQ}' [6, 24] instead of [12, 24]" in text
