from src.tokenizer.special_tokens import SPECIAL_TOKEN_NAMES
from tests.support.shared_data import shared_data


def test_there_are_256_different_names() -> None:
    assert len(SPECIAL_TOKEN_NAMES) == len(set(SPECIAL_TOKEN_NAMES)) == 256


def test_the_named_ones_stand_where_meta_has_them() -> None:
    assert SPECIAL_TOKEN_NAMES[:12] == (
        "<|begin_of_text|>",  # 128000
        "<|end_of_text|>",  # 128001
        "<|reserved_special_token_0|>",  # 128002
        "<|reserved_special_token_1|>",  # 128003
        "<|finetune_right_pad_id|>",  # 128004
        "<|step_id|>",  # 128005
        "<|start_header_id|>",  # 128006
        "<|end_header_id|>",  # 128007
        "<|eom_id|>",  # 128008
        "<|eot_id|>",  # 128009
        "<|python_tag|>",  # 128010
        "<|reserved_special_token_2|>",  # 128011
    )
    assert SPECIAL_TOKEN_NAMES[-1] == "<|reserved_special_token_246|>"  # 128255


def test_all_names_are_those_of_the_file_in_hugging_faces_format() -> None:
    import json

    tokens = json.loads(shared_data("llama3/tokenizer.json").read_bytes())["added_tokens"]
    assert [(token["id"], token["content"]) for token in tokens] == list(
        enumerate(SPECIAL_TOKEN_NAMES, start=128000)
    )
