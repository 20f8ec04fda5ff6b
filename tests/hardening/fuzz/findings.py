"""Inputs that once ended in an undeclared exception, by target; each is replayed by the tests."""

import json

from tests.hardening.fuzz.inputs import INDEX, TOKENIZER_CONFIG

FINDINGS: dict[str, dict[str, bytes]] = {
    "model.safetensors.index.json": {
        "a name that the system calls too long": json.dumps(
            INDEX | {"weight_map": {"a": "x" * 300 + ".safetensors"}}
        ).encode()
    },
    "tokenizer_config.json": {
        "an id of more digits than Python reads": json.dumps(
            TOKENIZER_CONFIG | {"added_tokens_decoder": {"9" * 5000: {"content": "<x>"}}}
        ).encode()
    },
}
