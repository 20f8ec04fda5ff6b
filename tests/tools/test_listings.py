"""The listings of chapter 14: the statements of a stage, without checks of errors."""

import pytest

from src.trace.events import STAGES
from tools.listings import stage_code
from tools.pages import ROOT, PageError


def code_of(
    stage: int, only: tuple[str, ...] = (), without: tuple[str, ...] = ()
) -> tuple[list[str], bool]:
    file, _, line = STAGES[stage].code.partition(":")
    function = STAGES[stage].function
    code, is_whole = stage_code(ROOT / file, function, int(line) - 1, only, without)
    return code.split("\n"), is_whole


def test_a_listing_ends_at_the_next_stage_or_at_the_end_of_the_function():
    lines, is_whole = code_of(13)
    assert is_whole
    assert lines[0].startswith("mark(13)")
    assert lines[-1] == "weights = ml.softmax(scores, dim=-1)"
    assert code_of(12)[0][-1].startswith("values = values.transpose(0, 1)")
    assert code_of(14)[0][-1].startswith("return output.transpose(0, 1)")


def test_statements_of_the_stage_and_of_other_functions_can_be_chosen():
    whole, _ = code_of(13)
    chosen = ("weights =", "LlamaAttention.forward: xq = self.rotate")
    assert code_of(13, only=chosen) == (
        [
            whole[0],
            whole[-1],
            "",
            "# In LlamaAttention.forward:",
            "xq = self.rotate(xq, rotations)",
        ],
        False,
    )


def test_statements_can_be_left_out_with_the_comments_above_them():
    whole, _ = code_of(13)
    kept = [x for x in whole if x.startswith(("mark", "scores = ml.mul", "weights"))]
    assert code_of(13, without=("if mask", "scores = ml.matmul")) == (kept, False)


def test_checks_of_errors_are_left_out_and_their_blocks_are_not_indented():
    for stage in (1, 2, 3, 20):
        lines, is_whole = code_of(stage)
        assert not is_whole
        assert not any(x.lstrip().startswith(("raise", "assert")) for x in lines)
    assert (
        "    ids += self._encoder.encode(_without_surrogates(text), first=first)"
        in (code_of(1)[0])
    )


@pytest.mark.parametrize(
    "choices",
    [
        {"only": ["no ="]},
        {"only": ["scores ="]},
        {"only": ["LlamaAttention.no: scores ="]},
        {"without": ["no ="]},
    ],
)
def test_a_choice_that_selects_no_statement_or_several_is_an_error(choices):
    with pytest.raises(PageError, match=r"generated: stage: expected (one|a) statement"):
        code_of(13, **choices)
