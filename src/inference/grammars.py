"""Answers that follow a grammar: JSON by a schema, a regular expression, or a grammar of Lark.

llguidance says before each token which ones may come. It runs in `grammar_server.py`, a process
apart, whose children compute the next mask while the model runs the token before it.
"""

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..tokenizer import Tokenizer
from ..untrusted import parse_strict_json, shown
from .errors import GrammarError

KINDS = ("json_schema", "regex", "lark")
MOST_BYTES = 1 << 18  # of the text of a grammar
# Blanks between the parts of JSON: a small model would write them for ever.
BLANKS = {"whitespace_pattern": r"[ \n]{1,12}"}
_PROGRAM = Path(__file__).with_name("grammar_server.py")
# The process ends after less than a second of processor time; this is for a machine that is busy.
_SECONDS = 10.0
_INSTALL = "grammars need llguidance: run `pip install -e '.[serve]'` in the repository"

Words = npt.NDArray[np.uint32]


@dataclass(frozen=True)
class Grammar:
    """What an answer has to follow; GrammarError for an unknown kind, a long text or no JSON."""

    kind: str  # of KINDS
    text: str  # the schema as JSON, or the expression or grammar itself

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            rule = f"kind must be one of {', '.join(KINDS)}"
            raise GrammarError(f"[grammar] {rule}: got {shown(self.kind)}")
        try:
            size = len(self.text.encode("utf-8", "replace"))
            if size > MOST_BYTES:
                raise ValueError(f"expected at most {MOST_BYTES} bytes, got {size}")
            if self.kind == "json_schema":
                found = parse_strict_json(self.text.encode("utf-8", "surrogatepass"))
                if not isinstance(found, dict | bool):
                    raise ValueError("expected an object")
        except ValueError as error:
            raise GrammarError(f"[grammar] {self.kind}: {error}") from None


class GrammarMask:
    """Which tokens may come next in one answer: a `TokenMask` of the engines."""

    def __init__(self, stream: Connection, grammar: Grammar) -> None:
        self._stream = stream
        options = {"overrides": BLANKS} if grammar.kind == "json_schema" else {}
        stream.send_bytes(json.dumps([grammar.kind, grammar.text, options]).encode())
        self._next: Words | None = self._received("the grammar")

    def allowed(self) -> Words:
        """Return the tokens that may come next: uint32 [ceil(V / 32)], the lowest bit first."""
        if self._next is None:
            self._next = self._received("the answer so far")
        return self._next

    def accept(self, token_id: int) -> None:
        """Take the token that was drawn; its successors are found while the model runs it."""
        self._next = None
        with contextlib.suppress(OSError):
            self._stream.send_bytes(token_id.to_bytes(4, "little"))

    def close(self) -> None:
        """End the process that follows this answer."""
        self._stream.close()

    def _received(self, what: str) -> Words:
        """Return the next mask; raise GrammarError for an error, or too much time or memory."""
        try:
            if not self._stream.poll(_SECONDS):
                raise TimeoutError
            message = self._stream.recv_bytes()
        except (OSError, EOFError):  # TimeoutError is an OSError
            self._stream.close()
            raise GrammarError(
                f"[grammar] {what}: expected the tokens that may come next within a second and "
                "64 MiB, got none"
            ) from None
        if message[:1] == b"E":
            self._stream.close()
            reason = message[1:].decode("utf-8", "replace").splitlines() or ["no reason"]
            raise GrammarError(f"[grammar] {what}: {shown(reason[0])}")
        return np.frombuffer(message, np.uint32, offset=1)


class Grammars:
    """Makes masks for the answers of one model, which at least one of `end_ids` ends."""

    def __init__(self, tokenizer: Tokenizer, end_ids: Collection[int]) -> None:
        self._lock = threading.Lock()
        self._control, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", str(_PROGRAM)],
                stdin=theirs.fileno(),
                stderr=subprocess.DEVNULL,
            )
        ids = range(tokenizer.vocab_size)
        tokens = [tokenizer.token_bytes(token).decode("latin-1") for token in ids]
        special_ids = [token for token in ids if tokenizer.is_special(token)]
        try:
            self._control.send_bytes(json.dumps([tokens, sorted(end_ids), special_ids]).encode())
            self._control.recv_bytes()
        except (OSError, EOFError):
            self.close()
            raise GrammarError(_INSTALL) from None

    def mask(self, grammar: Grammar, answer_ids: Sequence[int] = ()) -> GrammarMask:
        """Compile a grammar for one answer, of which some tokens were drawn; from any thread.

        Raise GrammarError as `_received`, also for a token that may not come.
        """
        ours, theirs = Pipe()
        with theirs, self._lock:
            send_handle(self._control, theirs.fileno(), self._process.pid)
        mask = GrammarMask(ours, grammar)
        for token in answer_ids:
            mask.allowed()
            mask.accept(token)
        return mask

    def close(self) -> None:
        """End the process; answers under way go on to their end."""
        self._control.close()
        self._process.wait()
