"""Restrict answers to a JSON schema, a regular expression, or a Lark grammar.

llguidance computes the set of tokens that may come next. It runs in a separate process,
`grammar_server.py`. For each grammar, this process forks a child that compiles the
grammar once. The child then forks a process for each answer, which computes the next mask
while the model runs the previous token.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from ..tokenizer import Tokenizer
from ..untrusted import parse_strict_json, shown
from .errors import ClosedError, GrammarError, GrammarLimitError

KINDS = ("json_schema", "regex", "lark")
MOST_BYTES = 1 << 18  # maximum grammar size
# White space between JSON tokens is limited, because a small model may otherwise never
# stop writing it.
BLANKS = {"whitespace_pattern": r"[ \n]{1,12}"}
_PROGRAM = Path(__file__).with_name("grammar_server.py")
# Seconds to wait for a process. A process uses less than a second of CPU time, but the
# machine may be busy.
_SECONDS = 10.0
# The maximum number of grammars in use, in total and per client, and the maximum number
# of unused compiled grammars that are kept.
MOST_USED = 32
MOST_USED_BY_CLIENT = 8
MOST_KEPT = 8

Words = npt.NDArray[np.uint32]


@dataclass(frozen=True)
class Grammar:
    """A grammar for an answer.

    Raises:
        GrammarError: If the kind is unknown, the text is too long, or a schema is not
            valid JSON.
    """

    kind: str  # one of KINDS
    text: str  # a JSON schema, a regular expression, or a Lark grammar

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            rule = f"kind must be one of {', '.join(KINDS)}"
            raise GrammarError(f"[grammar] {rule}: got {shown(self.kind)}")
        try:
            size = len(self.text.encode("utf-8", "replace"))
            if size > MOST_BYTES:
                raise ValueError(f"expected at most {MOST_BYTES} bytes, got {size}")
            if self.kind == "json_schema":
                schema = parse_strict_json(self.text.encode("utf-8", "surrogatepass"))
                if not isinstance(schema, dict | bool):
                    raise ValueError("expected an object")
        except ValueError as error:
            raise GrammarError(f"[grammar] {self.kind}: {error}") from None


def read_grammar(text: str) -> Grammar:
    """Read a grammar in Lark notation or in llama.cpp's notation (GBNF).

    Raise GrammarError if the grammar is too long, or if it is invalid GBNF.
    """
    from .gbnf import is_gbnf, lark_of_gbnf

    grammar = Grammar("lark", text)
    if not is_gbnf(text):
        return grammar
    try:
        return Grammar("lark", lark_of_gbnf(text))
    except ValueError as error:
        raise GrammarError(f"[grammar] llama.cpp's notation (GBNF): {error}") from None


class CompiledGrammar:
    """A process that has compiled a grammar, and the mask for the first token."""

    def __init__(self, stream: Connection, grammar: Grammar) -> None:
        """Send the grammar to the process connected to `stream`, and await its mask."""
        self._stream = stream
        options = {"overrides": BLANKS} if grammar.kind == "json_schema" else {}
        with contextlib.suppress(OSError):  # `_receive_mask` reports a terminated process
            self._stream.send_bytes(
                json.dumps([grammar.kind, grammar.text, options]).encode()
            )
        rule = "to be compiled within 0.8 seconds of processor time and 64 MiB"
        self.first = _receive_mask(stream, "the grammar", rule, _SECONDS)

    @property
    def is_alive(self) -> bool:
        """Whether the process is running, which means that its stream is still open."""
        return not self._stream.closed and not self._stream.poll()

    def follower(self) -> Connection:
        """Start a process that follows one answer, and return its stream."""
        ours, theirs = Pipe()
        with theirs, contextlib.suppress(OSError):  # if this fails, `ours` is at its end
            send_handle(self._stream, theirs.fileno(), 0)
        return ours

    def close(self) -> None:
        """End the process. Answers in progress can still be completed."""
        self._stream.close()


class GrammarMask:
    """The mask of the tokens that may come next in one answer, a `SlowMask`."""

    def __init__(self, compiled: CompiledGrammar) -> None:
        self._compiled = compiled
        # The stream of this answer's process, which starts with the first token.
        self._stream: Connection | None = None
        self._next: Words | None = compiled.first
        self._deadline = 0.0  # for the next mask, while `_next` is None

    def is_ready(self, seconds: float = 0.0) -> bool:
        """Wait up to `seconds` for the next mask, and return whether it is ready.

        The mask also counts as ready if `allowed` would raise an error.
        """
        if self._next is not None or self._stream is None or self._stream.closed:
            return True
        left = self._deadline - time.monotonic()
        return left <= 0 or self._stream.poll(min(seconds, left))

    def allowed(self) -> Words:
        """Return the mask of the tokens that may come next.

        Returns:
            A uint32 array [ceil(V / 32)] with one bit per token, the lowest bit first.

        Raises:
            GrammarError: If the answer does not follow the grammar, or if computing its
                masks takes too much time or memory.
        """
        if self._next is None:
            assert self._stream is not None
            left = max(self._deadline - time.monotonic(), 0.0)
            try:
                rule = (
                    "masks within 0.02 seconds of processor time for a token, and 64 MiB"
                )
                self._next = _receive_mask(self._stream, "the answer so far", rule, left)
            except GrammarTimeoutError:
                self._compiled.close()  # the next answer starts a new process
                raise
        return self._next

    def accept(self, token_id: int) -> None:
        """Send the drawn token, so that the next mask is computed in the background."""
        if self._stream is None:
            self._stream = self._compiled.follower()
        self._next = None
        self._deadline = time.monotonic() + _SECONDS
        with contextlib.suppress(OSError):
            self._stream.send_bytes(token_id.to_bytes(4, "little"))

    def close(self) -> None:
        """End the process that follows this answer."""
        if self._stream is not None:
            self._stream.close()


class GrammarTimeoutError(GrammarError):
    """Raised when a grammar process does not respond in time."""


def _receive_mask(stream: Connection, subject: str, rule: str, seconds: float) -> Words:
    """Receive a mask from a process, and close the stream after an error.

    Args:
        stream: The stream that is connected to the process.
        subject: The subject of error messages.
        rule: The limit to report if the process ends without an error message.
        seconds: The maximum time to wait.

    Raises:
        GrammarError: If the process reports an error, or exceeds a time or memory limit.
    """
    kind: type[GrammarError] = GrammarError
    message = b""
    try:
        if stream.poll(seconds):
            message = stream.recv_bytes()
        else:
            kind = GrammarTimeoutError
    except (OSError, EOFError):
        pass  # the system has terminated the process
    if message[:1] == b"M":
        return np.frombuffer(message, np.uint32, offset=1)
    stream.close()
    if message[:1] == b"E":
        reason = message[1:].decode("utf-8", "replace").splitlines() or ["no reason"]
        raise GrammarError(f"[grammar] {subject}: {shown(reason[0])}")
    outcome = (
        "no response" if kind is GrammarTimeoutError else "more: the process was ended"
    )
    raise kind(f"[grammar] {subject}: expected {rule}, got {outcome}")


class _Entry:
    """The state of one grammar in `Grammars`: its users, and its compilation result.

    Attributes:
        clients: The number of uses per client.
        lock: A lock that is held while the grammar is compiled.
        compiled: The process that has compiled the grammar, or None.
        error: The compilation error, or None.
    """

    def __init__(self) -> None:
        self.clients = Counter[Hashable]()
        self.lock = threading.Lock()
        self.compiled: CompiledGrammar | None = None
        self.error: GrammarError | None = None

    def close(self) -> None:
        if self.compiled is not None:
            self.compiled.close()


class GrammarUse:
    """A context manager that keeps a grammar in use by a client until `close`."""

    def __init__(self, owner: "Grammars", grammar: Grammar, client: Hashable) -> None:
        self._grammars = owner
        self._grammar = grammar
        self._client = client
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def compile(self) -> CompiledGrammar:
        """Return the compiled grammar. Compiling it, if necessary, may take a second.

        Raises:
            GrammarError: If the grammar is invalid, or if its compilation takes too much
                time or memory.
        """
        return self._grammars._compile(self._grammar)

    def close(self) -> None:
        """End the use. Any thread may call this, any number of times."""
        if not self._is_closed:
            self._is_closed = True
            self._grammars._release(self._grammar, self._client)


class Grammars:
    """Compile grammars for one model, and make masks for its answers.

    A complete answer ends with one of `end_ids`. Equal grammars are compiled only once.
    At most 32 grammars can be in use at the same time, and at most 8 per client.
    """

    def __init__(self, tokenizer: Tokenizer, end_ids: Collection[int]) -> None:
        self._end_ids = sorted(end_ids)
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        self._entries: dict[Grammar, _Entry] = {}  # in order of last use, oldest first
        self._is_closed = False
        self._process_lock = threading.Lock()
        self._control: Connection | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process now, if it is not running, instead of with the first grammar.

        Raises:
            GrammarError: If llguidance is not installed or the process does not respond.
            ClosedError: If `close` has been called.
        """
        with self._process_lock:
            self._start()

    def _start(self) -> Connection:
        """Return the process's control stream, starting the process if necessary."""
        if self._is_closed:
            raise ClosedError("[grammar] the process of the grammars was ended")
        if self._control is not None and self._process is not None:
            if not self._control.poll():  # readable only if the process has ended
                return self._control
            self._control.close()
            self._process.wait()
        self._control, theirs = Pipe()
        with theirs:
            # The process has a separate session, so that `close` can kill its children.
            self._process = subprocess.Popen(
                [sys.executable, "-I", str(_PROGRAM)],
                stdin=theirs.fileno(),
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        ids = range(self._tokenizer.vocab_size)
        tokens = [self._tokenizer.token_bytes(token).decode("latin-1") for token in ids]
        special_ids = [token for token in ids if self._tokenizer.is_special(token)]
        try:
            self._control.send_bytes(
                json.dumps([tokens, self._end_ids, special_ids]).encode()
            )
            if not self._control.poll(_SECONDS):
                self._process.kill()
                self._process.wait()
                rule = f"a response within {_SECONDS:.0f} seconds"
                raise GrammarTimeoutError(
                    f"[grammar] the process: expected {rule}, got none"
                )
            self._control.recv_bytes()
        except (OSError, EOFError):
            self._control.close()
            self._process.wait()
            self._control = self._process = None
            from ..installation import install_hint

            text = f"grammars need llguidance 1.7 or later: {install_hint('serve')}"
            raise GrammarError(text) from None
        return self._control

    def use(self, grammar: Grammar, client: Hashable = None) -> GrammarUse:
        """Register the use of a grammar, without waiting. Any thread may call this.

        Args:
            grammar: The grammar.
            client: The client that uses the grammar. The limit per client does not apply
                to None.

        Raises:
            GrammarLimitError: If too many grammars are in use, in total or by the client.
        """
        with self._lock:
            entries = self._entries
            used = [entry for entry in entries.values() if entry.clients]
            if grammar not in entries or not entries[grammar].clients:
                if len(used) >= MOST_USED:
                    raise GrammarLimitError(
                        f"[grammar] {MOST_USED} grammars are in use already"
                    )
                by_client = sum(client in entry.clients for entry in used)
                if client is not None and by_client >= MOST_USED_BY_CLIENT:
                    text = (
                        f"{MOST_USED_BY_CLIENT} grammars of this client are in use "
                        "already"
                    )
                    raise GrammarLimitError(f"[grammar] {text}")
            entry = entries.pop(grammar, None) or _Entry()
            entries[grammar] = entry
            entry.clients[client] += 1
        return GrammarUse(self, grammar, client)

    def mask(self, grammar: Grammar, answer_ids: Sequence[int] = ()) -> GrammarMask:
        """Compile a grammar, and return a mask for one answer. Any thread may call this.

        Args:
            grammar: The grammar.
            answer_ids: Tokens of the answer that have already been drawn.

        Raises:
            GrammarError: See `GrammarUse.compile`. Also raised if the grammar forbids one
                of the tokens.
            GrammarLimitError: If too many grammars are in use.
        """
        use = self.use(grammar)
        try:
            mask = GrammarMask(use.compile())
        except BaseException:
            use.close()
            raise
        weakref.finalize(mask, use.close)
        for token in answer_ids:
            mask.allowed()
            mask.accept(token)
        return mask

    def _compile(self, grammar: Grammar) -> CompiledGrammar:
        """Return the process for a grammar in use, starting a new one if necessary."""
        with self._lock:
            entry = self._entries[grammar]
        with entry.lock:
            if entry.error is not None:
                raise entry.error
            if entry.compiled is None or not entry.compiled.is_alive:
                entry.close()
                try:
                    entry.compiled = self._compile_in_new_process(grammar)
                except GrammarError as error:
                    entry.error = error
                    raise
            return entry.compiled

    def _compile_in_new_process(self, grammar: Grammar) -> CompiledGrammar:
        """Compile a grammar in a new process, and retry if the main process has ended."""
        try:
            return CompiledGrammar(self._fork_compiler(), grammar)
        except GrammarTimeoutError:
            self._replace_process()  # it may have stopped responding
            raise
        except GrammarError:
            with self._process_lock:
                has_ended = self._control is not None and self._control.poll()
            if self._is_closed or not has_ended:
                raise
        return CompiledGrammar(self._fork_compiler(), grammar)

    def _fork_compiler(self) -> Connection:
        """Start a process that compiles a grammar, and return its stream."""
        ours, theirs = Pipe()
        with theirs, self._process_lock:
            control = self._start()
            with contextlib.suppress(OSError):  # if this fails, `ours` is at its end
                send_handle(control, theirs.fileno(), 0)
        return ours

    def _release(self, grammar: Grammar, client: Hashable) -> None:
        """End a use, and close the oldest unused grammars in excess of `MOST_KEPT`."""
        with self._lock:
            entry = self._entries[grammar]
            entry.clients -= Counter([client])
            unused = [key for key, each in self._entries.items() if not each.clients]
            failed = [key for key in unused if self._entries[key].error is not None]
            for key in {*failed, *unused[: max(len(unused) - MOST_KEPT, 0)]}:
                self._entries.pop(key).close()

    def _replace_process(self) -> None:
        """Kill the process but not its children. The next grammar starts a new one."""
        with self._process_lock:
            if self._process is not None:
                self._process.kill()
                self._process.wait()

    def close(self, kills: bool = False) -> None:
        """End the process.

        Args:
            kills: Whether to kill its children at once as well. Otherwise, answers in
                progress can still be completed.
        """
        self._is_closed = True
        process = self._process
        if kills and process is not None and process.returncode is None:
            # This is done before acquiring the lock, because another thread may hold the
            # lock while it waits for the process.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        with self._process_lock:
            if self._control is not None and self._process is not None:
                self._control.close()
                self._process.wait()
        with self._lock:
            for entry in self._entries.values():
                entry.close()
