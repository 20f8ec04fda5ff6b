"""Tokenizers written as the keys of GGUF files, and read again: the ids of the original
files.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from src.tokenizer import Tokenizer, TokenizerError, load_tokenizer
from src.tokenizer.gguf_export import gguf_tokenizer_keys
from src.tokenizer.gguf_keys import PRE_TOKENIZERS, gguf_tokenizer
from tests.support.sentencepiece_writer import NORMAL, USER_DEFINED, model_message
from tests.support.shared_data import shared_data
from tests.tokenizer.json_files import (
    BYTE_LEVEL,
    Json,
    added,
    byte_level_file,
    changed,
    metaspace_file,
    write_json,
)
from tests.tokenizer.strings import KINDS, sample, strings
from tests.tokenizer.test_gguf_keys import ROWS, TEXTS, assert_same, assert_same_roles
from tests.tokenizer.trained_files import O200K, QWEN, SMOLLM3, TEKKEN, smollm2, split_by

PRE = "tokenizer.ggml.pre"
# By the names of split patterns.
TRAINED: dict[str, Callable[[], Json]] = {
    "qwen2": lambda: split_by(QWEN, composes=True), "smollm": smollm2, "refact": smollm2,
    "dbrx": lambda: split_by(SMOLLM3), "tekken": lambda: split_by(TEKKEN, whole=True),
    "gpt-4o": lambda: split_by(O200K),
}  # fmt: skip
# Which part of the many strings a test compares.
SHARE = {
    "llama2": 1,
    "llama3": 1,
    "qwen2": 1,
    "smollm": 1,
    "refact": 10,
    "dbrx": 10,
    "tekken": 10,
    "gpt-4o": 10,
}


def written(
    directory: Path, rows: int | None = None, pre: str | None = None
) -> tuple[Tokenizer, Tokenizer]:
    """Give the tokenizer by the keys, perhaps with another name of the split, and the
    original.
    """
    theirs = load_tokenizer(directory)
    keys = gguf_tokenizer_keys(directory, rows or theirs.vocab_size)
    if pre is not None:
        assert PRE_TOKENIZERS[keys[PRE]] == PRE_TOKENIZERS[pre]
        keys[PRE] = pre
    ours = gguf_tokenizer(Path("a.gguf"), keys)
    assert ours is not None
    return ours, theirs


@pytest.fixture(scope="module", params=[*SHARE])
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Tokenizer, Tokenizer]:
    name = request.param
    directory = tmp_path_factory.mktemp("tokenizer")
    if name in TRAINED:
        pytest.importorskip("tokenizers", reason="needs the oracle extra")
        write_json(directory, TRAINED[name]())
        return name, *written(directory, pre=name)
    shutil.copy(shared_data(f"{name}/tokenizer.model"), directory)
    return name, *written(directory)


def test_ids_and_roles_are_those_of_the_original(pair):
    _, ours, theirs = pair
    if theirs.special_tokens.keys() & {"<s>", "<|begin_of_text|>"}:
        assert_same_roles(ours, theirs)
    assert_same(ours, theirs, TEXTS)
    for kind in KINDS:
        assert_same(ours, theirs, strings(kind, 5, 20))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_ids_of_many_strings_are_those_of_the_original_file(pair, kind):
    name, ours, theirs = pair
    assert_same(ours, theirs, strings(kind, 11, sample(kind, SHARE[name])))


def test_a_tokenizer_json_in_sentencepieces_style_needs_the_model_beside_it(tmp_path):
    write_json(tmp_path, metaspace_file([("\u2581", "a")], "\u2581a"))
    with pytest.raises(
        TokenizerError, match=r"expected tokenizer.model next to tokenizer.json, go"
    ):
        written(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(model_message(ROWS))
    assert_same(*written(tmp_path), TEXTS)  # without config.json it is what is read
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(
        TokenizerError,
        match="text of token 259: expected the value of the files, got ano",
    ):
        written(tmp_path)  # the two files say different things


def llama2_pair(directory: Path, **changes: object) -> Path:
    """Write the two tokenizer files of a Llama 2 directory; `changes` are of its
    tokenizer.json.
    """
    shutil.copy(shared_data("llama2/tokenizer.model"), directory)
    file = json.loads(shared_data("llama2/tokenizer.json").read_bytes())
    write_json(directory, file | changes)
    config = {
        "add_bos_token": True,
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    (directory / "config.json").write_text("{}")
    return directory


def test_llama_2s_tokenizer_json_is_written_with_the_scores_of_the_model_beside_it(
    tmp_path,
):
    ours, theirs = written(llama2_pair(tmp_path))
    assert (ours.bos_id, ours.adds_bos) == (theirs.bos_id, theirs.adds_bos) == (1, True)
    assert ours.stop_ids == theirs.stop_ids == {2}
    assert_same(ours, theirs, TEXTS)
    for kind in KINDS:
        assert_same(ours, theirs, strings(kind, 5, 20))


def test_a_space_before_the_first_text_alone_is_written_with_a_warning(tmp_path):
    """As in Mistral's newer files; llama.cpp puts one before each text after a special
    token.
    """
    metaspace = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first"}
    directory = llama2_pair(
        tmp_path, normalizer=None, pre_tokenizer=metaspace | {"split": False}
    )
    with pytest.warns(
        UserWarning, match="with the GGUF file, each text gets one, also if"
    ):
        ours, theirs = written(directory)
    assert_same(ours, theirs, ["Hello world", "a  b"])
    assert theirs.encode("a", bos=False, eos=False, first=False) == [29874]
    assert ours.encode("a", bos=False, eos=False, first=False) == [263]


def test_user_defined_pieces_and_rows_without_tokens_are_kept(tmp_path):
    rows = [*ROWS, ("<tool>", 0.0, USER_DEFINED), ("aab", -9.0, NORMAL)]
    (tmp_path / "tokenizer.model").write_bytes(model_message(rows))
    theirs = load_tokenizer(tmp_path)
    ours, _ = written(tmp_path, theirs.vocab_size + 3)
    assert ours.vocab_size == theirs.vocab_size + 3
    assert ours.decode([theirs.vocab_size + 1]) == ""
    assert_same(ours, theirs, ["a<tool>b ab", "<s> a"])


def test_added_tokens_of_byte_level_files_are_kept(tmp_path):
    file = byte_level_file((("t", "h"), ("th", "e")), names=("<|im_end|>",))
    file = changed(file, added_tokens=[*file["added_tokens"], added(259, "<think>")])
    ours, theirs = written(write_json(tmp_path, file), 300)
    assert ours.special_tokens == theirs.special_tokens
    assert ours.stop_ids == theirs.stop_ids
    assert ours.decode([299]) == ""
    assert_same(ours, theirs, ["the<think> the<|im_end|>", *TEXTS])


def test_a_way_to_split_without_a_name_is_refused(tmp_path):
    nfc = {"type": "NFC"}
    write_json(
        tmp_path, changed(byte_level_file(), pre_tokenizer=BYTE_LEVEL, normalizer=nfc)
    )
    with pytest.raises(
        TokenizerError, match="split pattern: expected one of llama-bpe, "
    ):
        written(tmp_path)
