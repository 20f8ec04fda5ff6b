"""Which of several GGUF files is meant."""

import pytest

from src.catalog import CatalogError
from src.catalog.gguf_files import GgufModel, choose_gguf, gguf_models, quantization_of


@pytest.mark.parametrize(
    ("name", "quantization"),
    [
        ("Llama-3.2-1B-Instruct-Q4_K_M.gguf", "Q4_K_M"),
        ("model.q8_0.gguf", "Q8_0"),
        ("a/b-UD-Q4_K_XL-00001-of-00002.gguf", "UD-Q4_K_XL"),
        ("model_iq4_xs.gguf", "IQ4_XS"),
        ("model-BF16.gguf", "BF16"),
        ("model-f16.gguf", "F16"),
        ("gpt-oss-MXFP4.gguf", "MXFP4"),
        ("model-Q4_0_4_4.gguf", "Q4_0_4_4"),
        ("model.gguf", None),
        ("Qwen2.gguf", None),
        ("Q8_0.gguf", "Q8_0"),
        ("TQ1_0.GGUF", "TQ1_0"),
    ],
)
def test_the_name_of_a_file_ends_in_its_quantization(name, quantization):
    assert quantization_of(name) == quantization


def test_parts_are_one_model_and_other_kinds_of_files_are_none():
    names = [
        "m-Q8_0-00002-of-00002.gguf",
        "m-Q8_0-00001-of-00002.gguf",
        "m-Q4_0-00001-of-00002.gguf",
        "mmproj-m-f16.gguf",
        "m.imatrix.gguf",
        "m-Q2_K.gguf.part",
        "README.md",
        "a.gguf",
    ]
    whole = ("m-Q8_0-00001-of-00002.gguf", "m-Q8_0-00002-of-00002.gguf")
    models = gguf_models(names)
    assert models == [
        GgufModel(None, ("a.gguf",), 1),
        GgufModel("Q4_0", ("m-Q4_0-00001-of-00002.gguf",), 2),
        GgufModel("Q8_0", whole, 2),
    ]
    assert [model.is_whole for model in models] == [True, False, True]


@pytest.mark.parametrize(
    ("names", "wanted", "chosen"),
    [
        (["m-Q8_0.gguf", "m-Q4_K_M.gguf", "m-Q2_K.gguf"], None, "m-Q4_K_M.gguf"),
        (["m-Q8_0.gguf", "m-Q2_K.gguf"], None, "m-Q8_0.gguf"),
        (["m-Q2_K.gguf"], None, "m-Q2_K.gguf"),
        (["m.gguf"], None, "m.gguf"),
        (["m-Q8_0.gguf", "m-Q2_K.gguf"], "q2_k", "m-Q2_K.gguf"),
    ],
)
def test_q4_k_m_comes_before_q8_0_before_the_only_one(names, wanted, chosen):
    model = choose_gguf("a", names, wanted)
    assert model is not None
    assert model.files == (chosen,)


@pytest.mark.parametrize(
    ("names", "wanted", "reason"),
    [
        (
            ["m-Q2_K.gguf", "m-Q3_K.gguf"],
            None,
            "a quantization after the name and `:`, got Q2_K",
        ),
        (["m-Q2_K.gguf"], "Q8_0", r"GGUF files of Q8_0, got Q2_K \(1 in all\)"),
        (["m.gguf"], "Q8_0", r"GGUF files of Q8_0, got m\.gguf"),
    ],
)
def test_no_choice_is_an_error_that_lists_what_there_is(names, wanted, reason):
    with pytest.raises(CatalogError, match=f"^a: quantization: expected {reason}"):
        choose_gguf("a", names, wanted)


def test_no_gguf_file_is_no_model():
    assert choose_gguf("a", ["README.md", "model.safetensors"], None) is None
