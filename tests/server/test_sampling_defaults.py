"""Requests without settings of sampling get those that the model is made for."""

import json
import shutil
from pathlib import Path

import pytest

from src.inference import SamplingArgs
from src.model.sources import BUNDLED_MODEL
from tests.model.families import write_family
from tests.server.running import Running, running


def recommending_model(directory: Path) -> Path:
    """Writes a random model whose files recommend the most probable token."""
    write_family(directory, "qwen2", vocab_size=4096)
    (directory / "generation_config.json").write_text(json.dumps({"temperature": 0.0}))
    shutil.copy(BUNDLED_MODEL / "tokenizer.model", directory)
    return directory


def texts(server: Running, **fields: object) -> set[str]:
    """Returns the answers to one prompt with several seeds."""
    found = set()
    for seed in range(4):
        body = {"prompt": "a", "max_tokens": 6, "seed": seed} | fields
        status, answer = server.ask("/v1/completions", body)
        assert status == 200, answer
        found.add(answer["choices"][0]["text"])
    return found


def test_requests_without_settings_get_those_of_the_model(tmp_path: Path) -> None:
    path = recommending_model(tmp_path / "m")
    with running(tmp_path, "-m", path) as server:
        greedy = texts(server, temperature=0)
        assert len(greedy) == 1
        assert texts(server) == greedy
        assert len(texts(server, temperature=1)) > 1
        line = (
            "requests without sampling settings use temperature 0 (by "
            "generation_config.json)"
        )
        assert line in server.log.read_text("utf-8")


def test_the_settings_of_the_engine_can_be_asked_for(tmp_path: Path) -> None:
    path = recommending_model(tmp_path / "m")
    with running(tmp_path, "-m", path, "--sampling-defaults", "engine") as server:
        assert len(texts(server)) > 1
        assert "sampling" not in server.log.read_text("utf-8")


def test_a_body_keeps_its_own_settings() -> None:
    pytest.importorskip("msgspec", reason="needs the serve extra")
    from src.server.bodies import CompletionBody, parse_body

    defaults = {"temperature": 0.2, "top_p": 0.9}
    body = parse_body(b'{"prompt": "a", "top_p": 0.5, "seed": 3}', CompletionBody)
    assert body.sampling(defaults) == [SamplingArgs(temperature=0.2, top_p=0.5, seed=3)]
    assert body.sampling({}) == [SamplingArgs(top_p=0.5, seed=3)]
