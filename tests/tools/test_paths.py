"""The files that a prompt, a weight and a request pass through are few."""

import pytest

from tools.paths import files_on_the_way


def test_a_prompt_passes_through_few_files():
    completion = files_on_the_way("prompt", "--completion")
    chat = files_on_the_way("prompt")
    expected = {"cli/session.py", "inference/engine.py", "ml/ops/linear.py"}
    assert expected <= {*completion}
    assert len(completion) <= 33
    assert len(chat) <= 40
    assert {*chat} - {*completion} == {
        "inference/answer_forms.py",
        "inference/chat_encoding.py",
        "inference/chat_template.py",
        "inference/marked_text.py",
        "inference/messages.py",
        "inference/template_budget.py",
        "inference/template_sandbox.py",
    }


@pytest.mark.parametrize(
    ("file_format", "reader", "most"),
    [
        ("pth", "checkpoint/torch_pth.py", 18),
        ("gguf", "checkpoint/gguf.py", 15),
        ("safetensors", "checkpoint/safetensors.py", 15),
    ],
)
def test_a_weight_passes_through_few_files(file_format, reader, most):
    files = files_on_the_way("weight", file_format)
    assert {reader, "checkpoint/mapped_file.py", "ml/ops/linear.py"} <= {*files}
    assert len(files) <= most


@pytest.mark.parametrize(
    ("path", "most"), [("/v1/completions", 18), ("/v1/chat/completions", 24)]
)
def test_a_request_passes_through_few_files(path, most):
    pytest.importorskip("uvicorn", reason="the serve extra is not installed")
    files = files_on_the_way("request", path)
    assert {
        "server/connections.py",
        "server/app.py",
        "server/bodies.py",
        "server/gate.py",
    } <= {*files}
    assert "inference/batch.py" in files
    assert len(files) <= most
