"""Merging the shards of one model, and refusing what is not one model."""

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from src import ml
from src.checkpoint import CheckpointError, FileMemoryError, merge_shards
from src.checkpoint.shards import MergedShards, check_shards
from src.memory import readable_bytes
from tests.support.pth_writer import random_tensor, tensor_shapes, whole

# Sizes that all differ: D 24, Hh 24, Kh 12, F 72, V 40.
PARAMS = {
    "dim": 24, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "vocab_size": 40, "multiple_of": 24,
    "norm_eps": 1e-5,
}  # fmt: skip
SIZES = {"D": 24, "Hh": 24, "Kh": 12, "F": 72, "V": 40}
WQ = "layers.0.attention.wq.weight"
W2 = "layers.1.feed_forward.w2.weight"
BY_COLUMNS = ("attention.wo.weight", "feed_forward.w2.weight")

Arrays = dict[str, "np.ndarray[Any, Any]"]


def model(dtype: Any = ml_dtypes.bfloat16) -> Arrays:
    shapes = tensor_shapes(PARAMS)
    return {
        name: whole(random_tensor(name, shape, np.dtype(dtype), 1))
        for name, shape in shapes.items()
    }


def split(
    arrays: Mapping[str, "np.ndarray[Any, Any]"], count: int, embeddings: int = 0
) -> list[Arrays]:
    shards: list[Arrays] = [{} for _ in range(count)]
    for name, array in arrays.items():
        axis = 1 if name.endswith(BY_COLUMNS) else 0
        axis = embeddings if name == "tok_embeddings.weight" else axis
        pieces = [array] * count if array.ndim == 1 else np.split(array, count, axis=axis)
        for shard, piece in zip(shards, pieces, strict=True):
            shard[name] = np.ascontiguousarray(piece)
    return shards


def tensors(shards: list[Arrays]) -> list[dict[str, ml.Tensor]]:
    return [
        {name: ml.Tensor.from_numpy(array, name) for name, array in shard.items()}
        for shard in shards
    ]


def check(shards: list[Arrays], layers: int = 2, **changes: int | None) -> None:
    labels = [f"consolidated.{number:02d}.pth" for number in range(len(shards))]
    sizes = {letter: size for letter, size in (SIZES | changes).items() if size is not None}
    assert check_shards(tensors(shards), labels, layers, sizes) == SIZES


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.float32])
@pytest.mark.parametrize("embeddings", [0, 1])
@pytest.mark.parametrize("count", [2, 4])
def test_merged_shards_are_the_whole_model_bit_for_bit(
    count: int, embeddings: int, dtype: Any
) -> None:
    arrays = model(dtype)
    shards = split(arrays, count, embeddings)
    check(shards)
    merged = merge_shards(tensors(shards))
    assert list(merged) == list(arrays)
    for name, array in arrays.items():
        assert merged[name].name == name
        assert merged[name].is_contiguous
        assert merged[name].numpy().dtype == array.dtype
        assert merged[name].numpy().tobytes() == array.tobytes()
        assert merged[name].shape == array.shape


def test_shards_that_are_merged_one_tensor_at_a_time_tell_their_names() -> None:
    arrays = model()
    merged = MergedShards(tensors(split(arrays, 2)))
    assert len(merged) == len(arrays)
    assert "norm.weight" in merged
    assert "none" not in merged


def test_a_single_shard_is_not_copied() -> None:
    single = tensors([model()])
    merged = merge_shards(single)
    assert all(merged[name] is single[0][name] for name in merged)


def test_a_merge_copies_replicated_tensors_too() -> None:
    shards = tensors(split(model(), 2))
    merged = merge_shards(shards)
    assert merged["norm.weight"].data_pointer != shards[0]["norm.weight"].data_pointer


def test_a_copy_beyond_free_memory_is_refused_with_the_arithmetic_before_anything_is_copied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arrays = model(np.float32)
    needed = sum(array.nbytes for array in arrays.values())
    repeated = sum(array.nbytes for array in arrays.values() if array.ndim == 1)
    shards = tensors(split(arrays, 2))
    monkeypatch.setattr("src.memory.available_memory", lambda: needed)
    merge_shards(shards)
    monkeypatch.setattr("src.memory.available_memory", lambda: needed - 1)
    monkeypatch.setattr("src.checkpoint.shards._merge_one", None)
    with pytest.raises(FileMemoryError) as caught:
        merge_shards(shards)
    assert str(caught.value) == (
        f"shards: memory: expected at most {readable_bytes(needed - 1)} available, got "
        f"{readable_bytes(needed)} for a merged copy of 2 shards: {needed + repeated} bytes in "
        f"them less {repeated} bytes that repeat others"
    )
    monkeypatch.setattr("src.memory.available_memory", lambda: 0)
    assert merge_shards(shards[:1]) == shards[0]  # not copied


def test_a_copy_that_the_system_refuses_is_an_error_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("src.checkpoint.shards._merge_one", refuse)
    with pytest.raises(FileMemoryError, match=r"2 shards: .* got a refusal by the system"):
        merge_shards(tensors(split(model(), 2)))


def test_parts_may_be_views_that_are_not_contiguous() -> None:
    arrays = model(np.float32)
    shards = tensors(split(arrays, 2))
    for shard in shards:
        turned = np.asfortranarray(shard[WQ].numpy())
        shard[WQ] = ml.Tensor.from_numpy(turned, WQ)
    assert merge_shards(shards)[WQ].numpy().tobytes() == arrays[WQ].tobytes()


def test_replicated_tensors_must_be_equal_to_the_bit() -> None:
    shards = split(model(np.float32), 2)
    shards[0]["norm.weight"][3] = shards[1]["norm.weight"][3] = np.nan
    merge_shards(tensors(shards))
    shards[1]["norm.weight"] = shards[1]["norm.weight"].copy()
    shards[1]["norm.weight"][5] += 1
    with pytest.raises(CheckpointError, match=r"shard 01: tensor 'norm\.weight': values"):
        merge_shards(tensors(shards))


def test_a_table_of_rotary_frequencies_is_kept_once() -> None:
    shards = split(model() | {"rope.freqs": np.arange(3, dtype=np.float32)}, 2)
    check(shards)
    assert merge_shards(tensors(shards))["rope.freqs"].shape == (3,)


def test_shards_with_other_names_shapes_or_dtypes_are_refused() -> None:
    shards = split(model(), 2)
    del shards[1][WQ]
    with pytest.raises(CheckpointError, match=r"shard 01: tensor names.*wq.*1 in all"):
        merge_shards(tensors(shards))
    shards = split(model(), 2)
    shards[1][WQ] = shards[1][WQ][:-1]
    with pytest.raises(
        CheckpointError, match=r"expected bfloat16 \[12, 24\] .* got bfloat16 \[11, 24\]"
    ):
        merge_shards(tensors(shards))
    shards = split(model(), 2)
    shards[1][WQ] = shards[1][WQ].astype(np.float16)
    with pytest.raises(CheckpointError, match=r"got float16 \[12, 24\]"):
        merge_shards(tensors(shards))


def test_names_outside_the_table_are_not_merged() -> None:
    shards = [shard | {"layers.0.moe.w9": np.zeros(3, np.float32)} for shard in split(model(), 2)]
    with pytest.raises(CheckpointError, match=r"'layers\.0\.moe\.w9'"):
        merge_shards(tensors(shards))


def test_a_merge_needs_a_norm_of_one_dimension_and_matrices_of_two() -> None:
    shards = split(model(), 2)
    for shard in shards:
        shard["output.weight"] = np.zeros((), np.float32)
    with pytest.raises(CheckpointError, match="two dimensions"):
        merge_shards(tensors(shards))
    for shard in shards:
        del shard["norm.weight"]
    with pytest.raises(CheckpointError, match=r"norm\.weight"):
        merge_shards(tensors(shards))


def test_whole_and_tied_models_pass_the_check() -> None:
    check([model()])
    tied = model()
    del tied["output.weight"]
    check([tied])
    check([model()], V=None, F=None)
    check(split(model(), 2), V=None, F=None)


def test_missing_tensors_are_listed_up_to_five_and_counted() -> None:
    arrays = model()
    gone = [name for name in arrays if name.startswith("layers.1.")]
    for name in gone:
        del arrays[name]
    with pytest.raises(CheckpointError) as caught:
        check([arrays])
    text = str(caught.value)
    assert text.startswith("consolidated.00.pth: tensors: expected 21 tensors")
    assert text.count("'layers.1.") == 5
    assert "(9 in all)" in text


def test_extra_tensors_are_refused() -> None:
    with pytest.raises(CheckpointError, match=r"'layers\.2\.attention_norm\.weight' \(1 in all\)"):
        check([model() | {"layers.2.attention_norm.weight": np.ones(24, np.float32)}])
    with pytest.raises(CheckpointError, match=r"\(9 in all\)"):
        check([model()], layers=1)


@pytest.mark.parametrize("shape", [(0, 24), (24, 0), (7, 24), (24,)])
def test_a_first_weight_from_which_no_count_follows_is_a_wrong_shape(
    shape: tuple[int, ...],
) -> None:
    wq = "layers.0.attention.wq.weight"
    with pytest.raises(CheckpointError, match=rf"'{wq}' \[.*\] instead of \[24, 24\]"):
        check([model() | {wq: np.ones(shape, np.float32)}])


def test_wrongly_shaped_tensors_are_listed_with_both_shapes() -> None:
    arrays = model()
    arrays[W2] = arrays[W2][:, :-1]
    arrays["norm.weight"] = arrays["norm.weight"].reshape(4, 6)
    with pytest.raises(CheckpointError) as caught:
        check([arrays])
    assert "'norm.weight' [4, 6] instead of [24]" in str(caught.value)
    assert f"'{W2}' [24, 71] instead of [24, 72]" in str(caught.value)
    assert "(2 in all)" in str(caught.value)


@pytest.mark.parametrize(
    "changes", [{"D": 32, "Hh": 32}, {"Kh": 24}, {"V": 41}, {"F": 70}, {"layers": 3}]
)
def test_parameters_that_contradict_the_tensors_are_refused(changes: dict[str, int]) -> None:
    with pytest.raises(CheckpointError):
        check([model()], **changes)


def test_sizes_that_the_parameters_leave_open_must_agree_among_the_tensors() -> None:
    arrays = model()
    arrays["output.weight"] = arrays["output.weight"][:-1]
    with pytest.raises(CheckpointError, match=r"'output\.weight' \[39, 24\] instead of \[40, 24\]"):
        check([arrays], V=None)
    arrays = model()
    arrays[W2] = arrays[W2][:, :-1]
    with pytest.raises(CheckpointError, match=r"\[24, 71\] instead of \[24, 72\]"):
        check([arrays], F=None)


def test_an_empty_vocabulary_is_refused() -> None:
    arrays = model()
    for name in ("tok_embeddings.weight", "output.weight"):
        arrays[name] = arrays[name][:0]
    with pytest.raises(CheckpointError, match=r"\[0, 24\]"):
        check([arrays], V=None)


def test_one_shard_of_several_alone_is_refused_naming_the_missing() -> None:
    with pytest.raises(CheckpointError, match=r"expected 4, got 1,.* missing 01, 02, 03 \(3 in"):
        check(split(model(), 4)[:1])
    with pytest.raises(CheckpointError, match=r"expected 4, got 2, .* missing 02, 03 \(2 in all\)"):
        check(split(model(), 4)[:2])
    with pytest.raises(CheckpointError, match="expected 1, got 2"):
        check([model(), model()])


def test_a_first_weight_that_was_cut_in_a_later_shard_is_a_wrong_shape_of_that_shard() -> None:
    shards = split(model(), 2)
    check(shards)
    shards[1][WQ] = shards[1][WQ][:6]  # rows of which four shards would make the whole
    with pytest.raises(CheckpointError) as caught:
        check(shards)
    text = str(caught.value)
    assert text.startswith("consolidated.01.pth: shapes: ")
    assert f"'{WQ}' [6, 24] instead of [12, 24]" in text
