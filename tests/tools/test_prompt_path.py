"""The files that a prompt passes through are few."""

from tools.prompt_path import prompt_path


def test_a_prompt_passes_through_few_files():
    completion = prompt_path("--completion")
    chat = prompt_path()
    assert {"cli/session.py", "inference/engine.py", "ml/ops/linear.py"} <= set(
        completion
    )
    assert len(completion) <= 32
    assert len(chat) <= 39
    assert {*chat} - {*completion} == {
        "inference/answer_forms.py",
        "inference/chat_encoding.py",
        "inference/chat_template.py",
        "inference/marked_text.py",
        "inference/messages.py",
        "inference/template_budget.py",
        "inference/template_sandbox.py",
    }
