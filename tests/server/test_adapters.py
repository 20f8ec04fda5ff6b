"""The server's LoRA adapters: by id and scale, by the name of the model, and by default."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from src.inference import InferenceEngine, SamplingArgs
from src.model import Model, load_adapter
from tests.server.running import Running, running, skip_without_extra
from tests.support.adapters import random_pairs, write_peft

TEXT = "/v1/completions"
PROMPT = "Once upon a time"
BODY = {"prompt": PROMPT, "temperature": 0, "max_tokens": 8, "seed": 7}


@pytest.fixture(scope="module")
def paths(bundled: Model, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    place = tmp_path_factory.mktemp("adapters")
    return [
        write_peft(place / name, random_pairs(bundled.args, 4, seed, size=2.5), alpha=4)
        for seed, name in enumerate(("first", "second"), 1)
    ]


@pytest.fixture(scope="module")
def adapted(
    paths: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    first, second = paths
    flags = ("--lora", str(first), "--lora", f"{second}:0")
    with running(tmp_path_factory.mktemp("server"), *flags) as found:
        yield found


@pytest.fixture(scope="module")
def answers(bundled: Model, paths: list[Path]) -> Any:
    """Returns the text that one process answers with some scales."""
    loaded = [load_adapter(bundled, path) for path in paths]
    engine = InferenceEngine(bundled, 64, speculation=False)
    assert bundled.tokenizer is not None
    ids = bundled.tokenizer.encode(PROMPT, bos=True, eos=False)
    greedy = SamplingArgs(temperature=0.0)

    def text(*scales: tuple[int, float]) -> str:
        adapters = tuple((loaded[number], scale) for number, scale in scales)
        return "".join(
            step.text for step in engine.generate(ids, 8, greedy, adapters=adapters)
        )

    return text


def text_of(server: Running, **fields: Any) -> str:
    status, answer = server.ask(TEXT, BODY | fields)
    assert status == 200, answer
    return str(answer["choices"][0]["text"])


def test_a_request_chooses_adapters_by_id_and_scale(
    adapted: Running, answers: Any
) -> None:
    found = {text_of(adapted)}
    assert found == {answers((0, 1.0))}
    for scales in ([], [(0, 1.0)], [(1, 0.7)], [(0, 0.0)], [(1, -1.0), (0, 0.5)]):
        lora = [{"id": number, "scale": scale} for number, scale in scales]
        text = text_of(adapted, lora=lora)
        assert text == answers(*scales)
        found.add(text)
    assert len(found) > 3


def test_a_request_chooses_an_adapter_by_the_name_of_the_model(
    adapted: Running, answers: Any
) -> None:
    for number, name in enumerate(("first", "second")):
        model = f"bundled+{name}"
        status, answer = adapted.ask(TEXT, BODY | {"model": model})
        assert status == 200
        assert answer["model"] == model
        assert answer["choices"][0]["text"] == answers((number, 1.0))
    assert text_of(adapted, model="bundled") == answers((0, 1.0))


def test_a_chat_has_adapters_too(adapted: Running) -> None:
    plain = adapted.chat("Hi", max_tokens=8, lora=[])
    other = adapted.chat("Hi", max_tokens=8, model="bundled+second")
    assert plain["choices"] != other["choices"]


def test_the_adapters_and_models_are_listed(adapted: Running) -> None:
    assert adapted.ask("/lora-adapters") == (
        200,
        [
            {"id": 0, "path": "first", "scale": 1.0},
            {"id": 1, "path": "second", "scale": 0.0},
        ],
    )
    models = adapted.ask("/v1/models")[1]["data"]
    names = ["bundled", "bundled+first", "bundled+second"]
    assert [model["id"] for model in models] == names
    assert adapted.ask("/v1/models/bundled+first")[1]["id"] == "bundled+first"
    assert adapted.ask("/v1/models/bundled+third")[0] == 404


def test_a_server_without_adapters_has_none(server: Running) -> None:
    assert server.ask("/lora-adapters") == (200, [])
    assert text_of(server, lora=[]) == text_of(server)


@pytest.mark.parametrize(
    ("fields", "status", "words"),
    [
        ({"lora": [{"id": 2, "scale": 1}]}, 400, "lora: expected ids below 2, got 2"),
        (
            {"lora": [{"id": 1, "scale": 1}, {"id": 1, "scale": 2}]},
            400,
            "lora: expected each id once, got 1 again",
        ),
        ({"lora": [{"id": -1, "scale": 1}]}, 400, "lora[0].id: Expected `int` >= 0"),
        ({"lora": [{"id": 0}]}, 400, "lora[0].scale: "),
        ({"lora": [{"id": 0, "scale": "1"}]}, 400, "lora[0].scale: Expected `float`"),
        ({"lora": [{"id": 0, "scale": 1e9}]}, 400, "lora[0].scale: Expected `float` <="),
        ({"lora": [{"id": 0, "scale": 1, "x": 1}]}, 400, "lora[0].x: expected a support"),
        ({"lora": {"id": 0}}, 400, "lora: Expected `array | null`"),
        ({"lora": [{"id": 0, "scale": 1}] * 65}, 400, "lora: Expected `array` of length"),
        ({"model": "bundled+third"}, 404, 'model: expected "bundled" or no model, got'),
        (
            {"model": "bundled+first", "lora": []},
            400,
            'lora: expected no value with the model "bundled+first"',
        ),
    ],
    ids=str,
)
def test_a_wrong_choice_is_refused(
    adapted: Running, fields: dict[str, Any], status: int, words: str
) -> None:
    found, answer = adapted.ask(TEXT, BODY | fields)
    assert found == status, answer
    assert answer["error"]["message"].startswith(words)


def test_requests_at_once_get_the_answers_that_they_get_alone(
    adapted: Running, answers: Any
) -> None:
    choices: list[list[tuple[int, float]]] = [
        [], [(0, 1.0)], [(1, 1.0)], [(0, 0.5), (1, 0.5)],
    ]  # fmt: skip
    expected = [answers(*scales) for scales in choices]

    def ask(number: int) -> bool:
        scales = choices[number % len(choices)]
        lora = [{"id": each, "scale": scale} for each, scale in scales]
        return text_of(adapted, lora=lora) == expected[number % len(choices)]

    with ThreadPoolExecutor(16) as threads:
        assert all(threads.map(ask, range(64)))


def test_the_page_of_an_answer_is_of_its_adapters(adapted: Running) -> None:
    body = BODY | {"model": "bundled+second"}
    answer = adapted.ask(TEXT, body)[1]
    status, page = adapted.ask("/explorer", {"id": answer["id"]})
    assert status == 200, page
    assert adapted.ask(f"/{page['path']}")[0] == 200


def test_two_adapters_of_one_name_are_refused(paths: list[Path], tmp_path: Path) -> None:
    skip_without_extra()
    renamed = tmp_path / "first"
    shutil.copytree(paths[1], renamed)
    flags = ("--serve", "127.0.0.1:0", "--lora", str(paths[0]), "--lora", str(renamed))
    done = subprocess.run(
        [sys.executable, "-m", "src.main", *flags],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2
    assert "error: --lora: expected different names, got first twice" in done.stderr
