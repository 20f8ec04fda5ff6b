"""What a notebook shows of a tensor as the last line of a cell."""

import base64
import re
import struct
import zlib
from xml.etree import ElementTree

import numpy as np
import pytest

from src import ml
from tests.ml.op_checks import EVERY_DTYPE, SHAPES, sample


@pytest.fixture(autouse=True)
def _without_letters():
    yield
    ml.name_sizes()


@EVERY_DTYPE
def test_every_shape_and_dtype_has_a_view(dtype):
    for shape in SHAPES:
        text = sample(shape, dtype)._repr_html_()
        assert f"[{', '.join(map(str, shape))}] {dtype}" in text


def test_it_shows_letters_statistics_a_histogram_and_the_edges():
    ml.name_sizes(T=27, D=192)
    x = ml.arange(0, 27 * 192, dtype="float32").reshape(27, 192).with_name("<x>")
    text = x._repr_html_()
    assert "<b>&lt;x&gt;</b> [T, D] = [27, 192] float32" in text
    assert "min 0, mean 2592, max 5183" in text
    assert len(bars_of(text)) == 24
    assert re.findall(r"<th>([^<]*)</th>", text)[1:10] == [
        *"0123",
        "…",
        *map(str, range(188, 192)),
    ]
    assert "<td>5183</td>" in text


def bars_of(text: str) -> list[str]:
    """Return the bars of the histogram, which is a picture without other elements."""
    picture = base64.b64decode(re.search(r"svg\+xml;base64,([^']*)", text)[1]).decode()
    assert {element.tag for element in ElementTree.fromstring(picture)} == {
        f"{{http://www.w3.org/2000/svg}}{name}" for name in ("rect", "text")
    }
    assert not re.search("<svg|style='(?!font-family)", text)
    return re.findall("<rect", picture)


def test_the_heat_map_is_a_picture_of_the_last_two_dimensions():
    x = ml.tensor([[[1.0, -1.0, 0.0], [0.5, float("-inf"), float("nan")]]])
    text = x._repr_html_()
    assert "x[0]:" in text
    assert "not finite 2" in text
    data = base64.b64decode(re.search("image/png;base64,([^']*)", text)[1])
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", data[16:24]) == (3 * 8, 2 * 8)
    size = struct.unpack(">I", data[33:37])[0]
    lines = np.frombuffer(zlib.decompress(data[41 : 41 + size]), np.uint8)
    large = lines.reshape(16, 1 + 3 * 24)[:, 1:].reshape(16, 24, 3)
    assert (large == large[::8, ::8].repeat(8, axis=0).repeat(8, axis=1)).all()
    pixels = large[::8, ::8].tolist()
    assert pixels[0] == [[178, 24, 43], [33, 102, 172], [247, 247, 247]]
    assert pixels[1][1:] == [[120, 120, 120], [120, 120, 120]]
    assert pixels[1][0][0] > pixels[1][0][2]


def test_neighbouring_values_have_a_histogram():
    for x in (ml.polar(ml.ones(9), ml.arange(9).float()), ml.tensor([2**53, 2**53 + 2])):
        assert len(bars_of(x._repr_html_())) in (1, 24)


def test_a_quantized_tensor_and_a_large_one_have_a_view():
    assert "nf4" in ml.quantize(sample((4, 64)), "nf4")._repr_html_()
    large = ml.ones((), dtype="bfloat16").expand(2**14, 2**14)
    assert len(large._repr_html_()) < 20_000


def test_a_tensor_of_a_matrix_of_27_rows_is_printed_summarized():
    assert len(str(ml.zeros(27, 27)).split("\n")) == 7
