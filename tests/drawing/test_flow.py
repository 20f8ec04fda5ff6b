from src.drawing.flow import steps_of
from tests.drawing.test_diagrams import bundled_run


def test_an_op_is_below_those_whose_results_it_reads_and_its_weight_beside_it():
    gate, up, swiglu, down = steps_of(bundled_run().first(17))
    assert swiglu.sources == [gate, up]
    assert down.sources == [swiglu]
    assert [step.row for step in (gate, up, swiglu, down)] == [0, 0, 1, 2]
    assert [step.lane for step in (gate, up, swiglu, down)] == [0, 1, 0, 0]
    for step, weight in ((gate, "w1"), (up, "w3")):
        assert step.main_input.name == "normed"
        assert [x.name for x in step.side_inputs] == [f"layers.0.feed_forward.{weight}.weight"]
