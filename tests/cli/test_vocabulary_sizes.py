"""The command line with a tokenizer that has more tokens than the embeddings have
rows.
"""

from pathlib import Path

import pytest

from tests.support.vocabularies import PIECES, PLAIN_TEXT, SPECIAL_TEXT, write_vocabulary

FORMAT = ("--chat-format", "llama2", "-n", "3", "--temperature", "0")
BEYOND = f"must be from 0 to {PIECES - 1}: got {PIECES + 1}"


@pytest.fixture
def short(tmp_path: Path) -> Path:
    return write_vocabulary(tmp_path / "short", PIECES)


def test_both_numbers_are_said_and_an_id_beyond_the_rows_is_one_line(run, short):
    good = run("-m", short, *FORMAT, "-v", "-p", f"Hello {SPECIAL_TEXT}")
    assert good.returncode == 0
    said = f"the tokenizer has {PIECES + 2} tokens, the embeddings have {PIECES} rows"
    assert said in good.stderr.decode()
    assert said in run("-m", short, "--metadata").stdout.decode()
    bad = run("-m", short, *FORMAT, "-p", f"Hello {PLAIN_TEXT}")
    assert bad.returncode == 3
    assert bad.stdout == b""
    errors = [line for line in bad.stderr.decode().splitlines() if "error:" in line]
    assert len(errors) == 1
    assert errors[0].endswith(BEYOND)


def test_a_chat_goes_on_after_an_id_beyond_the_rows(open_chat, short):
    chat = open_chat("-m", short, *FORMAT, TERM="dumb")
    chat.say(f"Hello {PLAIN_TEXT}", BEYOND)
    chat.say("/history", "")
    chat.say("Hello")
    assert BEYOND not in chat.before
    assert chat.code("d") == 0


def test_the_keys_that_are_ignored_are_listed(run, tmp_path):
    directory = write_vocabulary(
        tmp_path / "model",
        PIECES + 2,
        use_cash=True,
        badwordsids=[[1]],
        eos_token="</s>",
        architectures=["LLaMAForCausalLM"],
    )
    (directory / "generation_config.json").write_text(
        '{"eos_token_id": 2, "encoder_repetition_penalty": 0.9, "transformers_version": '
        '"5"}'
    )
    in_config = (
        "ignored keys of config.json: 'use_cash', 'badwordsids', 'eos_token', "
        "'architectures' (4 in all)"
    )
    of_generation = "ignored keys of generation_config.json: 'encoder_repetition_penalty'"
    verbose = run("-m", directory, *FORMAT, "-v", "-p", "Hello").stderr.decode()
    metadata = " ".join(run("-m", directory, "--metadata").stdout.decode().split())
    for text in (verbose, metadata):
        assert in_config in text
        assert of_generation in text
    assert "ignored" not in run("-m", directory, *FORMAT, "-p", "Hello").stderr.decode()


def test_the_name_of_an_ignored_key_reaches_no_terminal_unescaped(run, tmp_path):
    control = {"\x1b]0;x\x07": "\x1b[2J", "a\nb": 1}
    directory = write_vocabulary(tmp_path / "model", PIECES + 2, **control)
    metadata = run("-m", directory, "--metadata").stdout
    verbose = run("-m", directory, *FORMAT, "-v", "-p", "Hello").stderr
    for output in (metadata, verbose):
        assert b"\x1b" not in output
        assert b"\x07" not in output
        assert rb"'\x1b]0;x\x07', 'a\nb' (2 in all)" in b" ".join(output.split())
