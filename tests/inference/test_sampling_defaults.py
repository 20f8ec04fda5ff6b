"""Defaults of sampling: those of the files, or else those of the name, or else the
engine's.
"""

import json
from pathlib import Path

from src.inference import SamplingArgs, sampling_defaults
from src.model import find_source
from tests.model.families import write_family
from tests.model.test_gguf import write
from tests.model.tiny import GROUPED

RECOMMENDED = {"temperature": 0.7, "top_p": 0.8, "top_k": 20}


def test_the_bundled_model_has_those_of_the_engine() -> None:
    found = sampling_defaults(find_source(None))
    assert (dict(found.settings), found.by, str(found)) == ({}, "", "")
    assert SamplingArgs(**found.settings) == SamplingArgs()


def test_a_directory_has_those_of_its_generation_configuration(tmp_path: Path) -> None:
    directory = write_family(tmp_path / "smollm2", "qwen2")
    (directory / "generation_config.json").write_text(
        json.dumps(RECOMMENDED | {"do_sample": True})
    )
    files = find_source(directory)
    found = sampling_defaults(files)
    assert found.settings == RECOMMENDED
    assert (
        str(found) == "temperature 0.7, top_k 20, top_p 0.8 (by generation_config.json)"
    )
    assert SamplingArgs(**found.settings) == SamplingArgs(
        temperature=0.7, top_p=0.8, top_k=20
    )
    assert files.ignored["generation_config.json"] == ()


def test_a_value_that_cannot_be_used_is_among_the_ignored_keys(tmp_path: Path) -> None:
    directory = write_family(tmp_path / "m", "qwen2")
    content = {"temperature": 0.7, "top_k": -1, "typical_p": 1.0}
    (directory / "generation_config.json").write_text(json.dumps(content))
    files = find_source(directory)
    assert sampling_defaults(files).settings == {"temperature": 0.7}
    assert files.ignored["generation_config.json"] == ("top_k", "typical_p")


def test_a_gguf_file_has_those_of_its_keys(tmp_path: Path) -> None:
    path = write(tmp_path / "a.gguf", GROUPED)
    assert sampling_defaults(find_source(path)).settings == {}
    keys = {"general.sampling.temp": 0.9, "general.name": "SmolLM2"}
    path = write(tmp_path / "b.gguf", GROUPED, keys=keys)
    assert (
        str(sampling_defaults(find_source(path)))
        == "temperature 0.9 (by general.sampling)"
    )


def test_a_name_has_a_row_where_the_files_have_no_values(tmp_path: Path) -> None:
    expected = {"temperature": 0.2, "top_p": 0.9}
    by_directory = write_family(tmp_path / "SmolLM2-135M-Instruct", "qwen2")
    by_file = write(tmp_path / "smollm2-q8.gguf", GROUPED)
    by_key = write(tmp_path / "a.gguf", GROUPED, keys={"general.name": "SmolLM2 135M"})
    by_other_key = write(
        tmp_path / "b.gguf", GROUPED, keys={"general.basename": "smollm2"}
    )
    for path in (by_directory, by_file, by_key, by_other_key):
        found = sampling_defaults(find_source(path))
        assert (found.settings, found.by) == (expected, "its name")
    others = (
        write_family(tmp_path / "SmolLM3", "qwen2"),
        write(tmp_path / "c.gguf", GROUPED),
    )
    for path in others:
        assert sampling_defaults(find_source(path)).settings == {}
