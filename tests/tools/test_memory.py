"""The tables of README.md follow from the forecast and from PERFORMANCE-TABLES.md,
row by row.
"""

import re
from pathlib import Path

import pytest

from src.memory import readable_bytes
from src.model import forecast_memory, load_model
from src.model.saving import save_quantized
from tools.producers import memory, weight_bytes

PAGE = Path("README.md")


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
    # The header, the vectors, the maps of nf4.
    assert found <= saved <= 1.02 * found + 16384


def cells(text: str) -> list[list[str]]:
    rows = re.findall(r"^\| (.*) \|$", text, re.MULTILINE)
    return [[cell.strip() for cell in row.split("|")] for row in rows]


def test_the_speeds_are_those_of_the_page_of_measurements():
    text = (
        Path("docs/PERFORMANCE-TABLES.md")
        .read_text("utf-8")
        .partition("\n### Zen 4\n")[2]
    )
    text = text.partition("\n### ")[0]
    text = re.sub(r"\| ([\d.]+) \| ([\d.]+ - [\d.]+) \|", r"| \1 (\2) |", text)
    measured = {name: numbers for name, *numbers in cells(text)}
    section = PAGE.read_text("utf-8").partition("\n## Speed\n")[2].partition("\n## ")[0]
    rows = cells(section.partition("ik_llama.cpp is")[0])[1:]
    assert len(rows) == 9
    prompts = {"new tokens": "decode", "prompt of 22 tokens": "prompt of 22",
               "prompt of 512 tokens": "prompt of 512"}  # fmt: skip
    for name, *told in rows:
        what, weights = name.split(", ")
        formats = weights.split(" against ")
        if formats == ["bfloat16"]:
            others = ("llama.cpp", "transformers")
            assert told == [
                measured[f"{prompts[what]} over {other}"][1] for other in others
            ]
        else:
            found = measured["{} over llama.cpp's {}".format(*formats)]
            assert told == [found[list(prompts).index(what)], ""]


def test_the_speeds_next_to_ik_llama_cpp_are_those_of_the_page_of_measurements():
    text = Path("docs/PERFORMANCE-TABLES.md").read_text("utf-8")
    table = text.partition("\n### AVX2, next to ik_llama.cpp\n")[2].partition("\n### ")[0]
    measured = {
        weights: (decode, of_22, of_512)
        for weights, bits, over, decode, of_22, _, of_512 in cells(table)
        if (bits, over) == ("8", "ik_llama.cpp -rtr 1")
    }
    section = (
        PAGE.read_text("utf-8").partition("ik_llama.cpp is")[2].partition("\n## ")[0]
    )
    rows = cells(section)[1:]
    assert {weights: tuple(told) for weights, *told in rows} == measured
    assert len(rows) == 4
