"""The probes of the machine's limits: what they do is tested, never how fast."""

import numpy as np
import pytest

from src.ml import Tensor, kernels, roofline


def buffer(nbytes: int) -> Tensor:
    return Tensor.from_numpy(np.random.default_rng(1).integers(0, 256, nbytes, np.uint8))


def test_reading_gives_a_rate_and_leaves_the_instruction_set_as_it_was() -> None:
    chosen = kernels.build_info()["isa"]
    for before in kernels.available_isas():
        kernels.set_isa(before)
        for isa in kernels.available_isas():
            assert roofline.read_rate([buffer(1 << 16), buffer(100)], isa, 4) > 0
            assert kernels.build_info()["isa"] == before
    kernels.set_isa(chosen)


def test_the_fastest_reading_is_one_of_the_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, str, int]] = []

    def read_rate(tensors: list[Tensor], isa: str, streams: int) -> float:
        seen.append((sum(tensor.nbytes for tensor in tensors), isa, streams))
        return 2.0 if (isa, streams) == (kernels.available_isas()[0], 2) else 1.0

    monkeypatch.setattr(roofline, "read_rate", read_rate)
    monkeypatch.setattr(roofline, "_SAMPLE_BYTES", 150)
    assert roofline.fastest_reading([buffer(100)] * 5) == (kernels.available_isas()[0], 2)
    assert {nbytes for nbytes, _, _ in seen} == {200}
    assert len(seen) == 2 * len(kernels.available_isas()) * len(roofline.STREAMS)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_multiply_adds_have_a_rate_where_there_are_vectors(dtype: str) -> None:
    isa = kernels.build_info()["isa"]
    rate = roofline.multiply_add_rate(dtype, rounds=1000)
    assert rate is None if isa == "portable" else rate is not None and rate > 0
