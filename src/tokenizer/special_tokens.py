"""The names of the 256 special tokens of Llama 3.1, in the order of their ids.

Their ids follow the ranks of the tokenizer file: the first name has the id V - 256.

Source: meta-llama/llama-models models/llama3/api/tokenizer.py, commit
e046ca91d9cb3217dc0a1b4874cac3273fbe1ad1. (Later commits name the twelfth `<|image|>`, for
Llama 3.2 Vision, and so move the reserved numbers by one; the ids of all other names stay.)
"""

BEGIN_OF_TEXT = "<|begin_of_text|>"
END_OF_TEXT = "<|end_of_text|>"
END_OF_MESSAGE = "<|eom_id|>"
END_OF_TURN = "<|eot_id|>"

# What a model may end its answer with.
STOP_TOKEN_NAMES = (END_OF_TEXT, END_OF_MESSAGE, END_OF_TURN)

_NAMED = (
    BEGIN_OF_TEXT,
    END_OF_TEXT,
    "<|reserved_special_token_0|>",
    "<|reserved_special_token_1|>",
    "<|finetune_right_pad_id|>",
    "<|step_id|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    END_OF_MESSAGE,
    END_OF_TURN,
    "<|python_tag|>",
)

SPECIAL_TOKEN_NAMES = _NAMED + tuple(
    f"<|reserved_special_token_{number}|>" for number in range(2, 2 + 256 - len(_NAMED))
)
