"""The server with a tokenizer that has more tokens than the embeddings have rows."""

from pathlib import Path

from tests.server.running import running
from tests.support.vocabularies import (
    PIECES,
    PLAIN,
    PLAIN_TEXT,
    SPECIAL,
    write_vocabulary,
)


def test_an_id_beyond_the_rows_is_an_error_of_the_request(tmp_path: Path) -> None:
    model = write_vocabulary(tmp_path / "short", PIECES)
    chat = "/v1/chat/completions"
    completions = "/v1/completions"
    with running(tmp_path, "-m", str(model), "--chat-format", "llama2") as server:
        good = server.chat("Hello", max_tokens=3)
        bodies = (
            (chat, {"messages": [{"role": "user", "content": PLAIN_TEXT}]}),
            (completions, {"prompt": f"a{PLAIN_TEXT}"}),
            (completions, {"prompt": [1, SPECIAL]}),
            (completions, {"prompt": [1, PLAIN], "stream": True}),
        )
        for path, body in bodies:
            status, answer = server.ask(path, body)
            assert (status, answer["error"]["code"]) == (400, "invalid_value")
            assert f"must be from 0 to {PIECES - 1}: got " in answer["error"]["message"]
        status, tokens = server.ask("/tokenize", {"content": PLAIN_TEXT})
        assert (status, PLAIN in tokens["tokens"]) == (200, True)
        status, text = server.ask("/detokenize", {"tokens": [PLAIN]})
        assert (status, text["content"]) == (200, PLAIN_TEXT)
        again = server.chat("Hello", max_tokens=3)
        assert again["choices"] == good["choices"]
        schema = {"type": "json_schema", "json_schema": {"schema": {"enum": [12, 345]}}}
        answer = server.chat("Hello", response_format=schema)
        assert answer["choices"][0]["message"]["content"] in ("12", "345")
