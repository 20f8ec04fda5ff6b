"""The process that compiles grammars and computes masks; `grammars.py` starts it and talks to it.

llguidance is fast, but a hostile schema can keep it busy for minutes, take gigabytes or abort the
process. So it runs apart: this program is started once, reads the vocabulary, and forks a child for
each answer, whose memory and time the system bounds. It imports nothing of the package, so that it
starts fast, and ends when its standard input, a socket, is closed.
"""

import contextlib
import json
import os
import resource
import signal
import sys
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle

import llguidance

# Bytes that a child may take beside what the process had.
MEMORY = 64 << 20
# Processor seconds for compiling a grammar, and for one token.
COMPILE_SECONDS, STEP_SECONDS = 0.8, 0.25


class Vocabulary(llguidance.TokenizerWrapper):
    """The tokens of a model in the form that llguidance asks for."""

    def __init__(self, tokens: list[bytes], end_ids: list[int], special_ids: list[int]) -> None:
        self.tokens, self.special_token_ids = tokens, special_ids
        self.eos_token_id, self.bos_token_id = end_ids[0], None
        self.is_tokenizer_wrapper = True
        self.tree = llguidance.LLTokenizer(self, n_vocab=len(tokens), eos_token=end_ids)

    def __call__(self, text: str) -> list[int]:
        """Return tokens that stand for a text, the longest one at each place."""
        ids: list[int] = self.tree.greedy_tokenize(text)
        return ids


def follow(tokenizer: "llguidance.LLTokenizer", stream: Connection) -> None:
    """Send the mask before each token, from a first message with the grammar until the end.

    A message begins with M for a mask, and with E for an error, which is the last one.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError), open("/proc/self/statm", "rb") as file:
        limit = int(file.read().split()[0]) * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    kind, text, options = json.loads(stream.recv_bytes())
    limits = llguidance.LLParserLimits(verbose_errors=False)
    signal.setitimer(signal.ITIMER_PROF, COMPILE_SECONDS)
    try:
        grammar = getattr(llguidance.LLMatcher, f"grammar_from_{kind}")(text, **options)
        matcher = llguidance.LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
        while True:
            mask = b"" if matcher.is_error() else matcher.compute_bitmask()
            if matcher.is_error():
                raise ValueError(matcher.get_error())
            signal.setitimer(signal.ITIMER_PROF, 0)
            stream.send_bytes(b"M" + mask)
            token = int.from_bytes(stream.recv_bytes(), "little")
            signal.setitimer(signal.ITIMER_PROF, STEP_SECONDS)
            if not matcher.consume_token(token):
                raise ValueError(matcher.get_error())
    except ValueError as error:
        stream.send_bytes(b"E" + str(error).encode())


def main() -> None:
    """Serve the process that started this one."""
    for number in (signal.SIGINT, signal.SIGTERM):  # both reach the whole group; that one decides
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children need not be waited for
    control = Connection(sys.stdin.fileno())
    tokens, end_ids, special_ids = json.loads(control.recv_bytes())
    vocabulary = Vocabulary([token.encode("latin-1") for token in tokens], end_ids, special_ids)
    control.send_bytes(b"R")
    with contextlib.suppress(EOFError):
        while True:
            with Connection(recv_handle(control)) as stream:
                if os.fork() == 0:
                    control.close()
                    with contextlib.suppress(EOFError, OSError):
                        follow(vocabulary.tree, stream)
                    os._exit(0)


if __name__ == "__main__":
    main()
