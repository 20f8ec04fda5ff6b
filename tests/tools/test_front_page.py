"""The tables of README.md follow from the forecast and from PERFORMANCE.md, row by row."""

import dataclasses
import math
from pathlib import Path

import pytest

from src import ml
from src.memory import readable_bytes
from src.model import load_model
from src.model.forecast import forecast_memory
from src.model.saving import save_quantized
from tools.front_page import measured, memory, speed, weight_bytes
from tools.pages import PageError

PAGE = Path("README.md")
TEXT = """
| decode over llama.cpp | >= 1 | 1.34 | 1.107 - 1.423 | met |
| nf4 over llama.cpp's Q4_0 | 1.41 (1.39 - 1.49) | 0.90 (0.89 - 0.93) | 1.01 (0.81 - 1.16) | 2.5 |
"""


def test_the_row_of_the_bundled_model_is_the_forecast_of_the_program():
    forecast = forecast_memory(None, 4096, 4096)
    sizes = forecast.mapped, forecast.needed, forecast.mapped + forecast.needed
    row = f"| bundled | bfloat16 | {' | '.join(map(readable_bytes, sizes))} |"
    assert row in memory(PAGE, "").splitlines()


def test_published_models_have_their_published_sizes():
    table = memory(PAGE, "")
    for name, parameters in (
        ("Llama 3.2 1B", 1235814400),
        ("Llama 3.2 3B", 3212749824),
        ("Llama 3.1 8B", 8030261248),
    ):
        assert f"| {name} | bfloat16 | {readable_bytes(2 * parameters)} |" in table


@pytest.mark.parametrize("quantize", ["int8", "nf4"])
def test_a_quantized_size_is_that_of_the_saved_file(quantize, tmp_path):
    save_quantized(None, tmp_path / "saved", quantize)
    saved = (tmp_path / "saved" / "model.safetensors").stat().st_size
    found = weight_bytes(load_model().args, is_tied=False, quantize=quantize)
    assert found <= saved <= 1.02 * found + 16384  # the header, the vectors, the maps of nf4


def test_a_tied_output_is_counted_once():
    args = dataclasses.replace(load_model().args, dtype=ml.float32)
    table = 4 * math.prod(args.tensor_shapes["output.weight"])
    assert weight_bytes(args, True, None) == weight_bytes(args, False, None) - table


@pytest.mark.parametrize(
    ("row", "columns", "numbers"),
    [
        ("decode over llama.cpp", (), "1.34 (1.107 - 1.423)"),
        ("nf4 over llama.cpp's Q4_0", (1,), "1.41 (1.39 - 1.49)"),
        ("nf4 over llama.cpp's Q4_0", (2,), "0.90 (0.89 - 0.93)"),
        ("nf4 over llama.cpp's Q4_0", (3,), "1.01 (0.81 - 1.16)"),
    ],
)
def test_numbers_are_taken_from_the_row_and_the_column_that_are_named(row, columns, numbers):
    assert measured(TEXT, row, *columns) == numbers


def test_every_row_of_the_table_of_speeds_is_found_and_one_that_is_gone_refused():
    assert len(speed(PAGE, "").splitlines()) == 11
    with pytest.raises(PageError, match="expected a row 'decode over transformers'"):
        measured(TEXT, "decode over transformers")
