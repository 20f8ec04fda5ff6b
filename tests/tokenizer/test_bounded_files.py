"""Large hostile files are refused at the first thing that is too much."""

import os
import tracemalloc
from pathlib import Path

import pytest

from src.tokenizer import TokenizerError, bounded_files, load_tokenizer
from src.tokenizer.sentencepiece_model import read_sentencepiece_model
from tests.support.sentencepiece_writer import RESERVED, bytes_field, model_message
from tests.tokenizer.json_files import byte_level_file, changed, write_json

SIZE = 8 << 20
GREEDY = {
    "empty lines": ("tokenizer.model", b"AA== 0\n", b"\n", b""),
    "short lines": ("tokenizer.model", b"AA== 0\n", b"ab\n", b""),
    "short pieces": ("tokenizer.model", b"", bytes_field(1, bytes_field(1, "a")), b""),
    "pieces without text": ("tokenizer.model", b"", bytes_field(1, bytes_field(1, "")), b""),
    "lists": ("tokenizer.json", b"[", b"[],", b"0]"),
    "objects": ("tokenizer.json", b'{"added_tokens":[', b'{"a":1},', b"0]}"),
    "texts": ("tokenizer.json", b'{"added_tokens":[', b'"",', b'""]}'),
}


@pytest.mark.parametrize("kind", GREEDY)
def test_a_file_of_many_small_things_takes_a_few_times_its_size(tmp_path: Path, kind: str) -> None:
    """Before, up to 45 times its size."""
    name, begin, part, end = GREEDY[kind]
    (tmp_path / name).write_bytes(begin + part * (SIZE // len(part)) + end)
    tracemalloc.start()
    try:
        with pytest.raises(TokenizerError, match="expected"):
            load_tokenizer(tmp_path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 10 * SIZE


def test_as_many_tokens_as_the_limit_are_read_and_one_more_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    byte_level = byte_level_file()
    (tmp_path / "pieces").write_bytes(model_message([*RESERVED, ("a", -1.0, 1)]))
    for module in ("json_vocabulary", "sentencepiece_model"):
        monkeypatch.setattr(f"src.tokenizer.{module}.MAX_TOKENS", len(RESERVED) + 1)
    assert len(read_sentencepiece_model(tmp_path / "pieces").pieces) == len(RESERVED) + 1
    assert load_tokenizer(write_json(tmp_path / "json", byte_level)).vocab_size > 256
    (tmp_path / "more").write_bytes(model_message([*RESERVED, ("a", -1.0, 1), ("b", -2.0, 1)]))
    with pytest.raises(TokenizerError, match="pieces: expected 1 to 260, got more"):
        read_sentencepiece_model(tmp_path / "more")
    vocab = byte_level["model"]["vocab"]
    vocab |= {"a" * n: len(vocab) + n for n in range(2, 5)}
    with pytest.raises(TokenizerError, match="vocab: expected 1 to 260 tokens, got 261"):
        load_tokenizer(write_json(tmp_path / "json", changed(byte_level, model={"vocab": vocab})))


def test_as_many_values_of_json_as_the_limit_are_read_and_one_more_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "some.json").write_bytes(b'{"a": [1, 2]}')
    monkeypatch.setattr(bounded_files, "_MAX_JSON_VALUES", 8)
    assert bounded_files.read_json(tmp_path / "some.json") == {"a": [1, 2]}
    monkeypatch.setattr(bounded_files, "_MAX_JSON_VALUES", 7)
    with pytest.raises(TokenizerError, match="text: expected at most 7 values, got about 8"):
        bounded_files.read_json(tmp_path / "some.json")


def test_a_file_may_have_64_mib_and_no_more(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    path.touch()
    os.truncate(path, 64 << 20)
    assert len(bounded_files.read_bytes(path)) == 64 << 20
    os.truncate(path, (64 << 20) + 1)
    with pytest.raises(TokenizerError, match="at most 67108864 bytes, got 67108865"):
        bounded_files.read_bytes(path)
