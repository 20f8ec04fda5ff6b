"""Exercise 9.3: a network without one of its layers."""

from typing import Any

from ...model import Model
from ...model.llama import LlamaTransformerBlock
from ..chat import replaced, run_chat
from ..exercise import Case, Mistake, PredictIt


def _cases(model: Model) -> list[Case]:
    plain = run_chat(model)
    engine = LlamaTransformerBlock.forward
    kept: list[int] = []
    for layer in range(model.args.n_layers):

        def forward(
            block: LlamaTransformerBlock, x: Any, *inputs: Any, layer: int = layer
        ) -> Any:
            return x if block.layer == layer else engine(block, x, *inputs)

        with replaced(LlamaTransformerBlock, "forward", forward):
            if run_chat(model).answer == plain.answer:
                kept.append(layer)
    return [Case("answer", None, kept, "the layers")]


EXERCISE = PredictIt(
    number="9.3",
    title="Leave out a layer",
    minutes=5,
    difficulty="medium",
    task="""\
Each layer only adds to the residual stream, so a layer can be left out: x passes by. Leave out
one of the four layers of the bundled model, 0 to 3, and ask "What is the capital of Ohio?".
Which layers, each left out alone, leave the answer as it was?

Set `answer` to a list of layers in ascending order. Guess: the engine tries all four, and says what
happens without a layer that you named and the model needs.
""",
    stub="""\
answer = None
""",
    solution="""\
answer = [1]
""",
    mistakes=(
        Mistake(
            "Layer 0 turns embeddings into what the other layers expect. Without it, the answer "
            "is noise.",
            (("[1]", "[0]"),),
        ),
        Mistake(
            "Without layer 2, the model finds Columbus, but writes it twice.",
            (("[1]", "[2]"),),
        ),
        Mistake(
            "Layer 1 can be left out. Without layer 2, the model finds Columbus, but writes it "
            "twice.",
            (("[1]", "[1, 2]"),),
        ),
        Mistake(
            "Layer 1 can be left out. Without the last layer, the model names another place.",
            (("[1]", "[1, 3]"),),
        ),
        Mistake(
            "Without layer 2, the model writes Columbus twice, and without the last layer it "
            "names another place.",
            (("[1]", "[2, 3]"),),
        ),
        Mistake(
            "One of these layers can be left out. Without layer 2, the model writes Columbus "
            "twice, and without the last layer it names another place.",
            (("[1]", "[1, 2, 3]"),),
        ),
        Mistake(
            "Without the last layer, the model names another place.",
            (("[1]", "[3]"),),
        ),
        Mistake(
            "One layer can be left out here, and the text stays the same.",
            (("[1]", "[]"),),
        ),
    ),
    cases=_cases,
    explanation="""\
Without layer 1 the text is the same, but the logits are not: they differ by an rms of 8.5, more
than without any other layer. An equal answer proves little: compare logits.""",
)
