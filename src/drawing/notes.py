"""What an op does, in a sentence, for those who look at a diagram."""

_LINEAR = "x times the transposed weight: a weight is stored [out, in]."
_NOTES = {
    "get_rows": "Row t is the row of the table that token t names. Nothing is multiplied.",
    "to": "The same numbers in another dtype.",
    "slice": "Some of the rows: a view, nothing is copied.",
    "full": "A matrix that holds minus infinity everywhere.",
    "triu": "Keeps minus infinity right of the diagonal, at later tokens; the rest becomes 0.",
    "rms_norm": "x / sqrt(mean(x * x) + eps) * weight, each row by itself.",
    "linear_transformation": _LINEAR,
    "linear_transformations": _LINEAR,
    "reshape": "The same numbers in the same order under other dimensions; nothing is copied.",
    "rotary_embedding": "Rotates each pair of numbers by the angle position times frequency.",
    "write_cache": "Writes the new positions after those that the cache holds.",
    "read_cache": "All positions up to now, including those of earlier steps.",
    "repeat_heads": "Repeats each key/value head G times, once per query head that reads it.",
    "transpose": "Swaps two dimensions: a view, nothing is copied.",
    "div": "Divides by sqrt(h), so that scores do not grow with the size of a head.",
    "softmax": "exp(s - max) / sum: each row becomes weights that add up to 1.",
    "swiglu": "silu(gate) * up, number by number; silu(g) = g / (1 + exp(-g)).",
    "add": "Number by number: the stream keeps what it had and gains the result of the part.",
}
_NOTES_OF_STAGES = {
    (13, "matmul"): "Each query times each key: how well they match, head by head.",
    (13, "add"): "Minus infinity at later tokens, 0 elsewhere; the same for all heads.",
    (14, "matmul"): "For each row of weights, the weighted sum of the values of all positions.",
    (14, "reshape"): "The heads of a token side by side.",
    (14, "transpose"): "Back to a row per token: a view, nothing is copied.",
    (19, "slice"): "Only the last token decides what comes next.",
    (19, "linear_transformation"): "One logit per token: the largest is the most probable next.",
}


def note_on(stage: int, op: str) -> str:
    """Return a sentence about an op in a stage; an op that is not known has none."""
    return _NOTES_OF_STAGES.get((stage, op), _NOTES.get(op, ""))
