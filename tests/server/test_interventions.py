"""The field `interventions` of requests."""

import pytest

from tests.server.running import Running

HEAD = "layers.0.attention.heads[2]"


def text_of(server: Running, **fields: object) -> str:
    body = server.chat("Hi", max_tokens=12, temperature=0, **fields)
    text: str = body["choices"][0]["message"]["content"]
    return text


def test_a_request_changes_tensors_of_its_own_answer(server: Running) -> None:
    plain = text_of(server)
    changed = text_of(server, interventions=["layers.3.feed_forward=0"])
    assert changed != plain
    assert text_of(server, interventions=[f"{HEAD}*=1", "x[layer 1]+=0"]) == plain
    weights = [f"layers.{layer}.attention.weights=0" for layer in range(4)]
    assert text_of(server, interventions=weights) != plain
    assert text_of(server) == plain


@pytest.mark.parametrize(
    ("interventions", "words"),
    [
        (["nothing=0"], "interventions[0]: name must be one of embedding, layers.L."),
        ([f"{HEAD}=0", "x[layer 0]=a:b"], "interventions[1]: value of 'x[layer 0]' must"),
        (["x[layer 0]@999999=0"], "interventions[0]: position of 'x[layer 0]@999999'"),
        (["x[layer 0]=nan"], "interventions[0]: value of 'x[layer 0]' must be finite"),
        ("x[layer 0]=0", "interventions: Expected `array | null`"),
        (["x[layer 0]=0"] * 65, "interventions: Expected `array` of length <= 64"),
    ],
)
def test_wrong_interventions_are_refused(
    server: Running, interventions: object, words: str
) -> None:
    body = {
        "messages": [{"role": "user", "content": "Hi"}],
        "interventions": interventions,
    }
    status, answer = server.ask("/v1/chat/completions", body)
    assert status == 400
    assert words in answer["error"]["message"]
