"""Opening a model: what is said of it, quantized, padded, with a chat format, or changed
in use.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from src import memory, ml
from src.cli.arguments import (
    DEFAULT_CONTEXT_LENGTH,
    parse_arguments,
)
from src.cli.console import Console, UsageError
from src.cli.loading import loading_line, open_model_to_run
from src.explorer.texts import facts_of
from src.inference import InferenceEngine, SamplingDefaults
from src.inference.engine import DEFAULT_SEQUENCE_LENGTH
from src.main import INTERRUPTED
from src.model import forecast_memory, load_model
from src.model.sources import BUNDLED_MODEL
from tests.cli.conftest import (
    ALPHABET,
    REPOSITORY,
    SECONDS,
    Outcome,
    reply,
    run_code,
    session_of,
    start_program,
)
from tests.cli.reciting_model import LONGEST_CONTEXT, VOCABULARY
from tests.inference.drafts import draft_always
from tests.model.families import write_family
from tests.model.hugging_face_tiny import write_tiny
from tests.model.test_gguf import BLOCKS, small_vocabulary, with_rows, write
from tests.model.tiny import GROUPED, weights, write_byte_tokenizer
from tests.support.gguf_writer import gguf_name, q8_0


def test_the_context_is_that_of_the_engine_and_may_be_as_long_as_the_model_allows(
    alphabet_model,
):
    def positions(*flags: str) -> int:
        return open_model_to_run(
            parse_arguments(["-m", str(alphabet_model), *flags]), Console()
        )[1]

    assert positions() == DEFAULT_CONTEXT_LENGTH == DEFAULT_SEQUENCE_LENGTH
    assert positions("-c", str(LONGEST_CONTEXT)) == LONGEST_CONTEXT
    with pytest.raises(UsageError, match=f"at most the model's {LONGEST_CONTEXT}, got"):
        positions("-c", str(LONGEST_CONTEXT + 1))


def test_the_loading_line_tells_name_size_format_memory_and_context(
    alphabet_model, monkeypatch
):
    monkeypatch.chdir(alphabet_model)
    session = session_of(Path("."), "-c", "64")
    assert loading_line(session.engine, SamplingDefaults()) == (
        f"{alphabet_model.name}: 1.3 M parameters, bfloat16, 2.5 MiB; context 64 tokens, "
        "64.0 KiB"
    )
    session.engine.model = replace(session.engine.model, parameter_count=1_235_814_400)
    assert loading_line(session.engine, SamplingDefaults()).startswith(
        f"{alphabet_model.name}: 1.2 B parameters, "
    )


def test_a_context_of_0_is_the_longest_of_the_model_if_it_fits(
    run, random_model, monkeypatch
):
    longest = load_model(random_model).args.max_context_length
    flags = ("-m", random_model, "-c", "0", "-p", "x", "-n", "1")
    done = run(*flags)
    assert (done.returncode, f"/{longest}, ".encode() in done.stderr) == (0, True)
    needed = forecast_memory(random_model, longest, longest).needed
    for free, code in ((needed - 1, 4), (needed, 0)):
        monkeypatch.setattr("src.memory.available_memory", lambda free=free: free)
        assert run(*flags).returncode == code


def test_what_cannot_fit_is_refused_and_what_is_only_slow_is_warned_of(
    run, alphabet_model, monkeypatch
):
    mapped = (alphabet_model / "consolidated.00.pth").stat().st_size
    needed = forecast_memory(alphabet_model, 64, 64).needed
    flags = ("-m", alphabet_model, "-c", "64", "-p", "x", "-q")
    for free, code, word in (
        (needed - 1, 4, b"error: memory: expected at most"),
        (mapped + needed - 1, 0, b"warning: memory: "),
        (mapped + needed, 0, b""),
    ):
        monkeypatch.setattr("src.memory.available_memory", lambda free=free: free)
        done = run(*flags)
        assert done.returncode == code
        assert done.stderr.startswith(word)
        assert done.stderr.count(b"\n") == (1 if word else 0)
        assert done.stdout == (b"" if code else b"abcdefghijklmnopqrstuvwxyz\n")


def test_a_quantized_model_answers_and_the_loading_line_says_so(run):
    question = "What is the capital of France?"
    done = run("--quantize", "nf4", "-p", question, "--temperature", "0", "-v")
    assert (done.returncode, b"Paris" in done.stdout) == (0, True)
    assert b"3.2 M parameters, nf4, " in done.stderr
    assert b"quantized matrices: 29 nf4" in done.stderr


def test_activations_are_chosen_and_the_loading_line_says_so(run, tmp_path):
    question = "What is the capital of France?"
    log = tmp_path / "debug.log"
    chosen = ("--quantize", "int8", "--activations", "int8")
    done = run(*chosen, "-p", question, "-v", "--debug-log", log, "-n", "4")
    assert done.returncode == 0
    assert b"3.2 M parameters, int8_block with int8 activations, " in done.stderr
    assert b"activations int8" in done.stderr
    header = " ".join(log.read_text(encoding="utf-8").partition("\n# T new")[0].split())
    assert "; activations int8; " in header.replace(" # ", " ")
    for flags in (("--quantize", "int8"), ("--quantize", "int8", "--activations=int16")):
        done = run(*flags, "-p", question, "-v", "-n", "4")
        assert (done.returncode, b"activations" in done.stderr) == (0, False)


def test_a_cache_type_is_chosen_and_the_loading_line_says_so(run):
    question = "What is the capital of France?"
    done = run("--cache-type", "q8_0", "-p", question, "-v", "-c", "64")
    assert (done.returncode, b"Paris" in done.stdout) == (0, True)
    assert b"; context 64 tokens, 34.0 KiB, q8_0" in done.stderr
    assert b"keys and values in q8_0" in done.stderr


def test_activations_without_quantized_products_are_warned_of(run):
    flags = ("-p", "What is the capital of France?", "--temperature", "0")
    plain = run(*flags)
    done = run(*flags, "--activations", "int8")
    assert (done.returncode, done.stdout) == (0, plain.stdout)
    assert b"warning: --activations int8: no effect" in done.stderr


def test_a_model_is_saved_and_shown(run, tmp_path):
    done = run("--quantize", "int8", "--save-quantized", tmp_path / "new")
    assert (done.returncode, done.stdout) == (0, b"")
    assert b"new: 4.0 MiB of weights written, int8" in done.stderr
    report = run("-m", tmp_path / "new", "--metadata").stdout
    assert b"int8_block" in report
    assert b"bytes of quantized matrices" in report
    again = run("--quantize", "int8", "--save-quantized", tmp_path / "new")
    assert again.returncode == 2
    assert again.stderr.count(b"\n") == 1
    assert load_model(tmp_path / "new").args.dim == load_model().args.dim
    for kind, flag in (("q8_0", "--save-quantized"), ("nf4", "--save-gguf")):
        done = run("--quantize", kind, flag, tmp_path / "other")
        assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)
        assert kind.encode() in done.stderr


@pytest.mark.parametrize("quantize", [(), ("--quantize", "q4_0")], ids=["plain", "q4_0"])
def test_a_model_is_saved_as_a_gguf_file_that_answers_alike(run, tmp_path, quantize):
    path = tmp_path / "new.gguf"
    done = run(*quantize, "--save-gguf", path)
    assert (done.returncode, done.stdout) == (0, b"")
    assert b"new.gguf: " in done.stderr
    question = "What is the capital of Massachusetts? Answer in one word."
    answer = run("-m", path, "-p", question, "--temperature", "0")
    assert (answer.returncode, answer.stdout) == (0, b"Boston\n")
    again = run("--save-gguf", path)
    assert again.returncode == 2
    assert again.stderr.endswith(b"expected a new file, got an existing one\n")


# Writes one weight after the other until it is ended.
SLOW = """
import shutil, signal, sys, time
from src.checkpoint.safetensors_writer import TensorWriter
from src.main import main

def write(self, name, content):
    print("writing", flush=True)
    time.sleep(60)

def rmtree(*args, remove=shutil.rmtree, **kwargs):
    signal.raise_signal(signal.SIGTERM)  # GNU's timeout sends two, one soon after the other
    remove(*args, **kwargs)

TensorWriter.write, shutil.rmtree = write, rmtree
sys.exit(main(sys.argv[1:]))
"""


def test_sigterm_leaves_nothing_of_a_directory_that_was_not_finished(tmp_path):
    flags = ("--quantize", "nf4", "--save-quantized", tmp_path / "new")
    command = [sys.executable, "-c", SLOW, *flags]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"writing\n"
        [unfinished] = tmp_path.iterdir()
        assert unfinished.name.startswith(".new.unfinished-")
        process.terminate()
        assert process.wait(SECONDS) == INTERRUPTED
    assert list(tmp_path.iterdir()) == []


TOKENS = 5000  # more than the pipe holds
TRUNCATED = (
    "error: a model file: expected all bytes that were mapped, got fewer (truncated "
    "while in use, or its device fails)"
)


def rewrite(weights: Path) -> None:
    """Writes the same bytes again, so that only the time tells."""
    content = weights.read_bytes()
    with open(weights, "r+b") as file:
        file.write(content)


def put_another(weights: Path) -> None:
    """Puts another file in its place, as downloads and editors do;
    the mapped one stays.
    """
    other = weights.with_name("other")
    other.write_bytes(b"another model")
    other.rename(weights)


def answer_while(
    model: Path, change: Callable[[Path], None], *, threads: int = 1
) -> Outcome:
    """Runs the program on a model, and changes its weights after the first words."""
    arguments = (
        "-m",
        model,
        "-p",
        "x",
        "-q",
        "-n",
        TOKENS,
        "-c",
        2 * TOKENS,
        "-t",
        threads,
    )
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    # communicate() does not see what a buffer has read ahead; a small pipe holds up the
    # answer.
    with start_program(*arguments, **pipes, bufsize=0, pipesize=4096) as process:
        first = b""
        while len(first) < len(ALPHABET):
            first += process.stdout.read(len(ALPHABET) - len(first)) or b"?"
        process.send_signal(signal.SIGSTOP)  # so that the change falls into the answer
        change(model / "consolidated.00.pth")
        process.send_signal(signal.SIGCONT)
        rest, notes = process.communicate(timeout=SECONDS)
    return Outcome(process.returncode, first + rest, notes)


@pytest.fixture
def model(endless_model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(endless_model, tmp_path / "model"))


@pytest.mark.parametrize(
    ("change", "threads", "said"),
    [
        (lambda weights: os.truncate(weights, 0), 1, TRUNCATED),
        (lambda weights: os.truncate(weights, 0), 2, TRUNCATED),
        (lambda weights: os.truncate(weights, weights.stat().st_size - 8192), 1, ""),
        (rewrite, 1, ""),
    ],
    ids=["truncated", "truncated with threads", "truncated at the end", "rewritten"],
)
def test_weights_changed_during_an_answer_are_one_line(model, change, threads, said):
    done = answer_while(model, change, threads=threads)
    [line] = done.stderr.decode().splitlines()
    assert done.returncode == 3
    assert line.startswith("error: ")
    assert line == TRUNCATED or ("while in use" in line and not said)
    assert done.stdout.startswith(ALPHABET.encode())
    assert len(done.stdout) < TOKENS or not said


@pytest.mark.parametrize(
    "change", [lambda _: None, put_another], ids=["nothing", "replace"]
)
def test_weights_that_stay_or_are_replaced_give_the_whole_answer(model, change):
    done = answer_while(model, change)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == (ALPHABET * TOKENS)[:TOKENS].encode() + b"\n"


SENT = """
import signal
from src.ml.kernels import exit_on_bus_error
exit_on_bus_error()
signal.raise_signal(signal.SIGBUS)
"""


def test_a_bus_error_that_no_page_caused_ends_the_process_as_ever():
    assert run_code(SENT) == Outcome(-signal.SIGBUS, b"", b"")


def test_an_id_beyond_the_tokens_can_be_drawn_and_adds_nothing_to_the_text(tmp_path):
    write_tiny(tmp_path, replace(GROUPED, vocab=4 * VOCABULARY))
    write_byte_tokenizer(tmp_path / "tokenizer.model")
    session = session_of(tmp_path, "--seed", "3", "-n", "40", "--temperature", "9")
    for _ in range(2):  # the chat goes on after it
        answer = session.ask("Hello")
        known = [token for token in answer.ids if token < VOCABULARY]
        assert 0 < len(known) < len(answer.ids)
        assert answer.text == session.tokenizer.decode(known)
    assert session.tokenizer.decode([*b"a\xc3", VOCABULARY, *b"\xa9b"]) == "a\u00e9b"
    prompt = [
        *session.tokenizer.encode("\u00e9", bos=True, eos=True),
        4 * VOCABULARY - 1,
        10,
    ]
    assert len(list(session.engine.generate(prompt, 2))) == 2


OWN = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


@pytest.fixture
def with_template(alphabet_model: Path, tmp_path: Path) -> Path:
    """The model of the alphabet with a chat template of its own."""
    directory = Path(shutil.copytree(alphabet_model, tmp_path / "model"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": OWN}))
    return directory


def test_show_prompt_tells_what_was_sent_in_the_named_format(alphabet_model, capsys):
    session = session_of(alphabet_model, "-c", "300", "--chat-format", "zephyr")
    session.system = "Be brief."
    session.ask("Hello")
    assert reply(capsys, session, "/show prompt") == (
        "<|system|>\nBe "
        "brief.<|end_of_text|>\n<|user|>\nHello<|end_of_text|>\n<|assistant|>\n\n"
    )
    assert "chat format: zephyr (by --chat-format)" in reply(
        capsys, session, "/show params"
    )


WRONG = json.dumps({"chat_template": "{{ unheard_of.content }}"})


@pytest.mark.parametrize(
    ("config", "flags", "code", "words"),
    [
        (WRONG, (), 2, ("'unheard_of' is undefined", "--chat-format", "--completion")),
        (None, ("--chat-format", "chatml"), 2, ("<|im_start|>",)),
        ("{", (), 3, ("content: expected JSON",)),
    ],
    ids=["wrong", "without its tokens", "damaged"],
)
def test_a_format_that_cannot_be_used_is_one_line(
    run, with_template, config, flags, code, words
):
    if config is not None:
        (with_template / "tokenizer_config.json").write_text(config)
    done = run("-m", with_template, "-p", "Hello", *flags)
    assert (done.returncode, done.stdout) == (code, b"")
    (line,) = done.stderr.decode().splitlines()
    assert all(word in line for word in words)


@pytest.mark.parametrize("flags", [(), ("--chat-format", "llama3"), ("--completion",)])
def test_with_its_template_with_the_flag_or_as_a_completion_a_model_answers(
    run, with_template, flags
):
    done = run("-m", with_template, "-q", "-p", "Hello\n", *flags)
    assert done == Outcome(0, f"{ALPHABET}\n".encode(), b"")


@pytest.fixture
def template_file(tmp_path: Path) -> Path:
    path = tmp_path / "own.jinja"
    path.write_text("{{ messages[-1].content }} {{ size }}<|eot_id|>", encoding="utf-8")
    return path


def test_a_template_is_named_or_read_from_a_file_and_gets_its_arguments(
    alphabet_model, template_file, capsys
):
    flags = (
        "-c",
        "300",
        "--chat-template",
        str(template_file),
        "--template-arg",
        "size=[5]",
    )
    session = session_of(alphabet_model, *flags)
    session.ask("Hello")
    assert reply(capsys, session, "/show prompt") == "Hello [5]<|eot_id|>\n"
    assert "chat format: own.jinja (by --chat-template)" in reply(
        capsys, session, "/show params"
    )
    named = session_of(alphabet_model, "-c", "300", "--chat-template", "zephyr")
    assert (named.chat_format.name, named.chat_format.by) == ("zephyr", "--chat-template")


@pytest.mark.parametrize(
    ("content", "flags", "error"),
    [
        (None, (), "--chat-template: expected a file or one of llama3, llama2, "),
        (
            b"ab\xff",
            (),
            "own.jinja: text: expected UTF-8, got an invalid byte at offset 2",
        ),
        (b"x" * 300_000, (), "own.jinja: size: expected at most 131072"),
        (b"{% for %}", (), "chat template: Expected an expression"),
        (b"", ("--template-arg", "messages=[]"), "argument must not be called messages"),
    ],
)
def test_a_template_file_that_cannot_be_used_is_one_line(
    run, alphabet_model, template_file, content, flags, error
):
    template_file.unlink()
    if content is not None:
        template_file.write_bytes(content)
    done = run("-m", alphabet_model, "-p", "x", "--chat-template", template_file, *flags)
    assert (done.returncode, done.stdout) == (2, b"")
    [line] = done.stderr.decode().splitlines()
    assert error in line


def test_a_gguf_file_answers_and_is_called_by_its_name(run, tmp_path):
    keys = small_vocabulary(tmp_path)
    path = write(tmp_path / "a.gguf", with_rows(263), ml.bfloat16.numpy_dtype, keys)
    link = tmp_path / "link.gguf"
    link.symlink_to(path)
    done = run("-m", link, "--completion", "-p", "ab", "-n", "2")
    assert done.returncode == 0
    assert done.stderr.startswith(b"link.gguf: ")
    assert b" parameters, bfloat16, " in done.stderr
    assert facts_of(load_model(link))["name"] == "link.gguf, bfloat16"  # in the explorer


def test_a_directory_that_holds_one_gguf_file_stands_for_it(run, tmp_path):
    directory = tmp_path / "model"
    directory.mkdir()
    keys = small_vocabulary(tmp_path)
    path = write(directory / "a.gguf", with_rows(263), ml.bfloat16.numpy_dtype, keys)
    arguments = ("--completion", "-p", "ab", "-n", "2", "--temperature", "0")
    done = run("-m", directory, *arguments)
    of_file = run("-m", path, *arguments)
    assert done.returncode == 0
    assert done.stdout == of_file.stdout
    assert done.stderr.startswith(b"a.gguf: ")
    (directory / "b.gguf").write_bytes(path.read_bytes())
    several = run("-m", directory, *arguments)
    assert several.returncode == 3
    assert (
        b"or the path of one of them, got 'a.gguf', 'b.gguf' (2 in all)" in several.stderr
    )


def test_a_gguf_file_of_several_formats_names_them_all(tmp_path):
    matrices = {
        n: w for n, w in weights(BLOCKS).items() if n.endswith(("w1.weight", "w3.weight"))
    }
    blocks = {gguf_name(name): q8_0(weight) for name, weight in matrices.items()}
    path = write(tmp_path / "a.gguf", BLOCKS, ml.bfloat16.numpy_dtype, tensors=blocks)
    assert "parameters, bfloat16, q8_0, " in loading_line(
        InferenceEngine(load_model(path), 16), SamplingDefaults()
    )


@pytest.mark.parametrize(
    ("keys", "flags", "error"),
    [
        (
            {"tokenizer.chat_template": "{{ x.y }}"},
            (),
            "chat template: 'x' is undefined; name a",
        ),
        ({}, ("--verify",), "--verify: expected a model directory, got a GGUF file"),
        (
            None,
            (),
            "a.gguf: tokenizer: expected a vocabulary in the keys of the file, got none",
        ),
    ],
    ids=["template", "verify", "no vocabulary"],
)
def test_what_a_gguf_file_cannot_do_is_said(run, tmp_path, keys, flags, error):
    if keys is None:
        path = write(tmp_path / "a.gguf", BLOCKS)
    else:
        path = write(
            tmp_path / "a.gguf", with_rows(263), keys=small_vocabulary(tmp_path) | keys
        )
    done = run("-m", path, "-p", "ab", *flags)
    assert done.returncode in (2, 3)
    [line] = done.stderr.decode().splitlines()
    assert error in line


def test_dequantized_weights_are_run_and_saved_as_plain_ones(run, tmp_path):
    sizes = replace(BLOCKS, vocab=263)
    blocks = {
        gguf_name(name): q8_0(w) for name, w in weights(sizes).items() if w.ndim == 2
    }
    keys = small_vocabulary(tmp_path)
    path = write(tmp_path / "a.gguf", sizes, keys=keys, tensors=blocks)
    asked = ("--completion", "-p", "ab", "-n", "8", "--temperature", "0")
    direct = run("-m", path, "--dequantize", *asked)
    assert direct.returncode == 0
    assert b" parameters, bfloat16, " in direct.stderr
    done = run("-m", path, "--dequantize", "--save-quantized", tmp_path / "plain")
    assert done.returncode == 0
    assert done.stderr.endswith(b" of weights written\n")
    assert run("-m", tmp_path / "plain", *asked).stdout == direct.stdout
    done = run(
        "-m",
        path,
        "--dequantize",
        "--quantize",
        "q4_0",
        "--save-gguf",
        tmp_path / "b.gguf",
    )
    assert done.returncode == 0
    quantized = run("-m", tmp_path / "plain", "--quantize", "q4_0", *asked)
    assert run("-m", tmp_path / "b.gguf", *asked).stdout == quantized.stdout


@pytest.mark.parametrize(
    "flags",
    [("-p", "a"), ("--save-gguf", "NEW"), ("--save-quantized", "NEW")],
    ids=" ".join,
)
def test_plain_weights_cannot_be_dequantized(run, random_model, tmp_path, flags):
    flags = [str(tmp_path / "new") if flag == "NEW" else flag for flag in flags]
    done = run("-m", random_model, "--dequantize", *flags)
    assert (done.returncode, done.stdout) == (3, b"")
    [line] = done.stderr.decode().splitlines()
    assert line.endswith(": dequantize: expected quantized weights, got plain weights")
    assert os.listdir(tmp_path) == []


# A draft model.


def test_a_draft_model_changes_no_answer(run, random_model, monkeypatch):
    draft_always(monkeypatch)
    arguments = (
        "-m",
        random_model,
        "-p",
        "abcabc",
        "-n",
        "40",
        "--seed",
        "1",
        "--no-stats",
    )
    plain = run(*arguments)
    drafted = run(*arguments, "-md", random_model)
    assert (drafted.returncode, drafted.stdout) == (0, plain.stdout)
    record = json.loads(run(*arguments, "--json", "--draft-model", random_model).stdout)
    assert record["accepted_tokens"] == record["drafted_tokens"] > 0


def test_a_draft_model_with_other_tokens_is_refused(run, alphabet_model):
    done = run("-m", alphabet_model, "-p", "a", "--draft-model", BUNDLED_MODEL)
    assert (done.returncode, done.stdout) == (3, b"")
    assert (
        b"vocabulary: expected the tokens of the model that it drafts for" in done.stderr
    )


@pytest.mark.parametrize(
    "flags",
    [("--draft-model", "MODEL"), ("--explore-with", "MODEL"), ("--explore-with", "nf4")],
    ids=" ".join,
)
def test_another_model_that_does_not_fit_is_refused(
    run, random_model, monkeypatch, tmp_path, flags
):
    needed = forecast_memory(random_model, 512, 512).needed
    arguments = ["-m", random_model, "-c", "512", "-p", "a", "-n", "1"]
    if flags[0] == "--explore-with":
        arguments += ["--explore", tmp_path / "page.html"]
    monkeypatch.setattr(memory, "available_memory", lambda: needed + 1000)
    done = run(*arguments, *(random_model if flag == "MODEL" else flag for flag in flags))
    assert (done.returncode, done.stdout) == (4, b"")
    assert b"memory: expected at most " in done.stderr
    assert os.listdir(tmp_path) == []
    assert run(*arguments).returncode == 0


@pytest.mark.parametrize(
    "flags", [("-p", "hi", "-n", "1"), ("--serve", "127.0.0.1:0", "--share-prefixes")]
)
def test_a_prompt_cache_that_cannot_be_written_is_rejected_at_the_start(
    run, tmp_path, flags
):
    if "--serve" in flags:
        pytest.importorskip("msgspec", reason="needs the serve extra")
    path = tmp_path / "missing" / "a.cache"
    done = run("-q", *flags, "--prompt-cache", path)
    assert done.returncode == 2
    assert done.stdout == b""
    reason = "cannot be written: No such file or directory"
    assert done.stderr.decode() == f"error: {path}: {reason}\n"


def test_a_prompt_cache_changes_no_answer_and_saves_the_prompt(run, tmp_path):
    asked = ("-p", "What is the capital of Peru?", "--temperature", "0", "--json")
    plain = json.loads(run(*asked).stdout)
    path = tmp_path / "a.cache"
    first, second = (
        json.loads(run(*asked, "--prompt-cache", path).stdout) for _ in range(2)
    )
    assert first["text"] == second["text"] == plain["text"]
    cached = [record["cached_tokens"] for record in (first, second)]
    assert cached == [0, plain["prompt_tokens"] - 1]
    path.write_bytes(path.read_bytes()[:-1])
    done = run("-q", *asked, "--prompt-cache", path)
    assert (done.returncode, done.stdout) == (3, b"")
    assert done.stderr.startswith(b"error: ")
    assert b"a.cache: tensor 'sha256': data_offsets: expected [begin, end]" in done.stderr
    assert done.stderr.count(b"\n") == 1


def recommending_model(directory: Path, **recommended: float) -> Path:
    """Writes a random model whose files recommend a sampling."""
    write_family(directory, "qwen2", vocab_size=4096)
    (directory / "generation_config.json").write_text(json.dumps(recommended))
    shutil.copy(BUNDLED_MODEL / "tokenizer.model", directory)
    return directory


def test_defaults_of_sampling_are_those_of_the_model_unless_flags_say_otherwise(
    tmp_path, run
):
    path = recommending_model(tmp_path / "m", temperature=0.0, top_p=0.8)
    how = ("-m", path, "--chat-format", "llama3", "-p", "hi", "-n", "3", "--no-stats")
    cases = {
        (): "; temperature 0, top_p 0.8 (by generation_config.json)",
        ("--temperature", "2"): "; top_p 0.8 (by generation_config.json)",
        ("--temperature", "2", "--top-p", "1"): "",
        ("--sampling-defaults", "engine"): "",
        (
            "--sampling-defaults",
            "model",
        ): "; temperature 0, top_p 0.8 (by generation_config.json)",
    }
    for flags, expected in cases.items():
        done = run(*how, *flags)
        assert done.returncode == 0, done.stderr
        line = next(x for x in done.stderr.decode().splitlines() if x.startswith("m: "))
        assert line.partition(" tokens, ")[2].partition(";")[2] == expected.removeprefix(
            ";"
        )


def test_the_chat_a_prompt_and_a_file_of_prompts_have_the_sampling_of_the_model(
    tmp_path, run
):
    path = recommending_model(tmp_path / "m", temperature=0.0)
    how = ("-m", path, "--chat-format", "llama3", "-n", "8", "-q")
    assert session_of(path, "--chat-format", "llama3").settings.temperature == 0.0
    greedy = json.loads(run(*how, "--json", "-p", "hi", "--temperature", "0").stdout)[
        "token_ids"
    ]
    for seed in ("1", "2"):
        done = run(*how, "--json", "-p", "hi", "--seed", seed)
        assert json.loads(done.stdout)["token_ids"] == greedy
        lines = tmp_path / "prompts.jsonl"
        lines.write_text('"hi"\n')
        done = run(*how, "--jsonl", lines, "--seed", seed)
        assert json.loads(done.stdout)["token_ids"] == greedy
        engine = run(
            *how, "--json", "-p", "hi", "--seed", seed, "--sampling-defaults", "engine"
        )
        assert json.loads(engine.stdout)["token_ids"] != greedy
