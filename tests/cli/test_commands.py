"""Every command of the chat, typed in a pseudo-terminal, on the bundled model."""

from pathlib import Path

import pytest

from src.cli.answer import INTERRUPTED
from src.cli.commands import COMMANDS, is_command, run_command
from src.cli.console import UsageError
from src.inference import InferenceEngine, SamplingError
from src.memory import readable_bytes
from src.model import load_model
from tests.cli.conftest import EITHER, interrupt_after, press_ctrl_c_at, reply, session_of
from tests.model.families import write_family

BAD_NUMBERS = ("x", "0", "-1", "101", "1.5", "\u00b2", "9" * 5000)
WITHOUT_ARGUMENT = [name for name, command in COMMANDS.items() if not command.usage]


def test_a_command_is_a_single_line_that_starts_with_a_slash_and_help_lists_every_one(
    typed,
):
    assert is_command("/help")
    assert not any(
        map(is_command, ("/usr/bin\n/usr/lib", "1/2", "exit the room", "help me"))
    )
    text = typed("/help")
    for name in (*COMMANDS, "Ctrl-C", "Ctrl-D", '"""'):
        assert f"\n{name} " in f"\n{text}"
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(
    ("line", "near"),
    [
        ("/regne", "/regen"), ("/bogus", ""), ("/", ""), ("/HELP", "/help"),
        ("/sytem x", "/system or /set"), ("/temperature 1", "/set temperature VALUE"),
        ("/top-p", "/set top_p VALUE"), ("/temp 0", "/set temperature VALUE"),
        ("/hlep", "/help"), ("/cleer the chat", "/clear"), ("/help, please", "/help"),
    ],
)  # fmt: skip
def test_an_unknown_command_is_one_line_with_near_names(session, line, near):
    assert is_command(line)
    with pytest.raises(UsageError) as raised:
        run_command(session, line)
    message = f"unknown command {line.split()[0]}"
    message += f" (did you mean {near}?)" if near else ""
    assert str(raised.value) == f"{message}; /help lists all"


@pytest.mark.parametrize(
    "line", ["/exit", "/exit ", "/bye", "/quit", "exit", "quit", " quit "]
)
def test_exit_leaves_by_any_of_its_names(session, line):
    assert is_command(line)
    with pytest.raises(EOFError):
        run_command(session, line)


@pytest.mark.parametrize(
    "line",
    [
        "/etc/hosts is empty, why?",
        "/no/such/file",
        "/dev, /usr and /bogus differ in what?",
        "/dev",
        "/usr: what is it for?",
        "/bogus is a name",
        "/file.txt",
        "/ is the root of what?",
        "// what does a comment look like?",
        "/help/index.html says nothing",
    ],
)
def test_a_line_that_begins_with_a_path_is_a_message(line):
    assert not is_command(line)


@pytest.mark.parametrize(
    "line", ["/exit/", "/clear?", "/set", "/help me", "/reset", "/?", "?"]
)
def test_a_line_that_begins_with_a_command_or_nearly_one_is_a_command(line):
    assert is_command(line) is (line != "/exit/")  # a second slash makes it a path


@pytest.mark.parametrize("name", ["?", "help", " help ", "/?", "/help"])
def test_help_has_the_names_of_other_programs(typed, name):
    assert is_command(name)
    assert typed(name).startswith("/help ")


def test_reset_and_retry_are_clear_and_regen(session, typed):
    session.ask("one")
    answer = session.last
    run_command(session, "/retry")
    assert (session.last is answer, len(session.turns)) == (False, 1)
    assert typed("/reset") == "conversation cleared\n"
    assert session.turns == []


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (
            "num_ctx",
            "context_length: it is fixed when the chat starts, with --context-length",
        ),
        ("parameter num_ctx", "context_length: it is fixed when the chat starts"),
        ("threads", "threads: it is fixed when the chat starts, with --threads"),
        ("verbose", "verbose: /stats on shows statistics"),
        ("nothink", "nothink: /set think off "),
        ("mirostat", "mirostat: not available: the sampling has temperature, "),
        ("warmth", "warmth: expected one of temperature, "),
    ],
)
def test_what_is_not_a_setting_here_is_answered_with_what_to_do(session, name, reason):
    settings = session.settings
    for line in (f"/set {name} 8", f"/set {name}"):
        with pytest.raises(UsageError, match=f"^no setting {reason}"):
            run_command(session, line)
    assert session.settings is settings


def test_set_system_and_the_topics_of_ollama_are_understood(session, typed):
    assert typed("/set system Be short.") == "system prompt: Be short.\n"
    assert typed("/show system") == "system prompt: Be short.\n"
    assert session.system == "Be short."
    session.ask("one")
    for theirs, ours in (
        ("info", "model"),
        ("parameters", "params"),
        ("template", "prompt"),
    ):
        assert typed(f"/show {theirs}") == typed(f"/show {ours}")


def test_system_sets_shows_and_removes_the_prompt_and_a_completion_has_none(
    session, typed
):
    assert typed("/system") == "system prompt: none\n"
    assert typed("/system Be  short. ") == "system prompt: Be  short.\n"
    assert session.system == "Be  short."
    assert typed('/system ""') == "system prompt: none\n"
    assert session.system is None
    session.completion = True
    with pytest.raises(UsageError, match="expected a chat, got --completion"):
        typed("/system Be short.")


def test_set_shows_what_is_set_and_changes_it_by_any_of_its_names(session, typed):
    assert typed("/set top-k") == "top_k             50\n"
    assert typed("/set").splitlines() == session.settings.lines()
    assert typed("/set parameter temp 1") == "temperature       1.0\n"
    with pytest.raises(SamplingError):
        typed("/set top_p 7")
    assert session.settings.top_p == 0.9


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        *(
            (f"{name} now ", f"usage: {name}, without an argument: got now")
            for name in WITHOUT_ARGUMENT
        ),
        *(
            (name, f"usage: {name} FILE: got nothing")
            for name in ("/load", "/save", "/read")
        ),
        ("/trace perhaps", "usage: /trace .on|off.: got perhaps"),
        (
            "/show weather",
            "usage: /show TOPIC, which must be one of model, .*: got weather",
        ),
        ("/tokens", "usage: /tokens TEXT"),
        ("/probs", "usage: /probs off or /probs K, which must be 1 to 100: got nothing"),
        *(
            (f"/probs {bad}", "usage: /probs off or /probs K, which .*: got")
            for bad in BAD_NUMBERS
        ),
        *(
            (f"/examples {bad}", "usage: /examples N, which must be 1 to 6: got")
            for bad in BAD_NUMBERS
        ),
    ],
)
def test_a_command_refuses_what_it_does_not_take(session, line, reason):
    session.ask("one")
    with pytest.raises(UsageError, match=reason):
        run_command(session, line)
    assert (len(session.turns), session.candidates) == (1, 0)


def test_tokens_shows_ids_bytes_and_pieces_of_a_text_as_it_was_typed(typed):
    assert typed("/tokens  \u00e9\x1b") == (
        "    id  bytes  text\n"
        "0   32  20     ' '\n"
        "1  195  c3     '\\xc3'\n"
        "2  169  a9     '\\xa9'\n"
        "3   27  1b     '\\x1b'\n"
        "4 tokens, 3 characters, 4 bytes\n"
    )
    assert "special" not in typed("/tokens <|eot_id|>")


@pytest.mark.parametrize("terminal", EITHER)
def test_every_command_does_what_it_says(open_chat, tmp_path, terminal):
    chat = tmp_path / "chat.json"
    text = tmp_path / "text.txt"
    log = tmp_path / "debug.log"
    text.write_text("My name is Anna.\n")
    flags = ("--temperature", "0", "--seed", "1", "-c", "2048", "--debug-log", log)
    child = open_chat(*flags, dimensions=(50, 120), TERM=terminal)
    lines = (
        ("/trace off", "trace: off"),
        ("/trace", "trace: off"),
        ("/help", "/why", "Ctrl-D"),
        ("/system You are a pirate", "system prompt: You are a pirate"),
        ("/clear", "conversation cleared; the system prompt is kept"),
        ('/system ""', "system prompt: none"),
        ("What is the capital of Turkey?", "Ankara.", "eot"),
        ("/regen", "Ankara.", "(21 cached)"),
        ("/why", "eot: the model drew <|eot_id|>", "of them cached, none dropped"),
        ("/branch", "1 'The'"),
        ("/show model", "3.2 M parameters"),
        ("/model", "bundled model: 3.2 M parameters"),
        ("/models", ""),
        ("/lora", "adapters: none"),
        ("/intervene", "interventions: none"),
        (f"/save {chat}", "saved: 1 answer and"),
        ("/undo", "removed: What is the capital of Turkey?"),
        (f"/load {chat}", "loaded: 1 answer and"),
        ("/clear", "conversation cleared"),
        (f"/read {text}", "read: 16 characters"),
        ("/stats off", "statistics after each answer: off"),
        ("What is my name?", "Anna"),
        ("/stats on", "statistics after each answer: on"),
        ("/stats", "statistics after each answer: on"),
        ("/tokens Hello", "id", "48 65 6c 6c 6f", "'Hello'", "1 token, "),
        ("/set max_tokens 2", "max_tokens        2"),
        ("/probs 2", "candidates: the 2 most probable"),
        ("Hello", "temperature 0", "* ", "100.00%", "tokens have a chance", "max tokens"),
        ("/continue", "max tokens", "/continue goes on"),
        (f"/explore {tmp_path}/page.html", "page.html: ", "to open in a browser"),
        ("/examples", "2. [chat] Describe your theory. (system: You are Einstein)"),
        ("/trace on", f"trace: {log}"),
        ("Hello", "max tokens"),
    )
    for line, *shown in lines:
        child.say(line, *shown)
    assert "feed-forward" in log.read_text()
    commands = {line.split()[0] for line, *_ in lines if line.startswith("/")}
    assert commands | {"/exit"} == set(COMMANDS)
    child.sendline("/exit")
    assert child.code() == 0


def test_show_tells_about_each_topic(session, typed, alphabet_model):
    for topic in ("prompt", "tokens"):
        assert typed(f"/show {topic}") == "the conversation is empty\n"
    assert typed("/why") == "no answer yet\n"
    session.ask("Hello")
    assert str(alphabet_model) in typed("/show model")
    prompt = typed("/show prompt")
    assert prompt.startswith(
        "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHello"
    )
    assert prompt.endswith(
        "Hello<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n\n"
    )
    tokens = typed("/show tokens")
    assert "\n 0  256  special  <|begin_of_text|>\n" in tokens
    assert "\n 9   72  48       'H'\n" in tokens
    assert tokens.endswith("\n55 tokens\n")
    session.candidates = 4
    session.attached = "some text"
    params = typed("/show params")
    assert "seed              3" in params
    assert "chat format: llama3 (by special tokens)" in params
    assert "candidates per token: 4" in params
    assert "before the next message: 9 characters" in params
    session.system = "é\x1b"
    tokens = typed("/show tokens")
    assert r"\xc3" in tokens
    assert "\x1b" not in tokens + typed("/show prompt")


def test_show_cache_counts_positions_layers_and_bytes(session, typed):
    assert "0 of 300" in typed("/show cache")
    session.ask("Hello")
    session.ask("again")
    context = session.engine.context
    per_token = context.nbytes // context.caches[0].capacity
    assert typed("/show cache").splitlines() == [
        "positions: 108 of 300 hold keys and values",
        "layers: 1, each with keys and values of 2 heads of 128 values in bfloat16",
        f"bytes: {readable_bytes(108 * per_token)} in use of "
        f"{readable_bytes(context.nbytes)}; {per_token} per position, 1 layer * {per_token}",
    ]


def test_show_cache_names_the_rings_of_layers_with_a_window(
    session, typed, tmp_path: Path
):
    family = load_model(write_family(tmp_path / "model", "gemma3_text"))
    session.engine = InferenceEngine(family, 4096)
    list(session.engine.generate([3] * 1200, 1))
    layer = 2 * 3 * 10 * 2  # keys and values of 3 heads of 10 values of 2 bytes
    used = readable_bytes((1200 + 6 * 1024) * layer)
    whole = readable_bytes((4096 + 6 * 1024) * layer)
    assert typed("/show cache").splitlines()[2:] == [
        "rings: 6 layers with a window, each with the last 1024 positions",
        f"bytes: {used} in use of {whole}; {7 * layer} per position, 7 layers * {layer}",
    ]


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (("300",), "eot: the model drew <|eot_id|> (token 265), which ends an answer"),
        (
            ("40", "-n", "3"),
            "max tokens: 3 tokens drawn, as many as max_tokens allows; /continue goes on",
        ),
        (
            ("40",),
            "context full: prompt and answer fill all 40 positions of the context",
        ),
    ],
)
def test_why_names_what_ended_the_answer(alphabet_model, capsys, flags, why):
    session = session_of(alphabet_model, "-c", *flags)
    end = 28 + len(session.ask("Hello").ids)
    assert reply(capsys, session, "/why").splitlines() == [
        why,
        "prompt: 28 tokens, 0 of them cached, none dropped",
        f"context: {end} of {flags[0]} positions at the end of the answer",
    ]


def test_why_names_the_stop_string_of_an_answer_that_went_on_escaped(reciting, capsys):
    flags = ("-c", "300", "-n", "1", "--stop", "\x1b[\x07", "--stop", "zzz")
    session = session_of(reciting(b"ab\x1b[\x07c"), *flags)
    session.ask("Hello")
    session.settings = session.settings.changed("max_tokens", "none")
    session.resume()
    assert session.turns[-1].answer == "ab"
    why = r"stop string: the text reached '\x1b[\x07' or 'zzz', which ends an answer"
    assert reply(capsys, session, "/why").splitlines()[0] == why


def test_why_tells_how_far_an_answer_came_that_was_interrupted(
    session, typed, monkeypatch
):
    with interrupt_after(3):
        assert session.ask("Hello").stop_reason == INTERRUPTED
    why = "interrupted: Ctrl-C came after 3 tokens; /continue goes on, /regen asks again"
    assert typed("/why").splitlines()[0] == why
    press_ctrl_c_at(monkeypatch, type(session.tokenizer), "encode", 0, after=False)
    session.ask("Hello")
    why = (
        "interrupted: Ctrl-C came before the first forward pass; /continue asks the question "
        "again\n"
    )
    assert typed("/why") == why
