"""The program that compiles grammars and computes masks, started by `grammars.py`.

llguidance is fast, but a malicious schema can keep it busy for minutes, use gigabytes of
memory, or abort the process. So it runs in a separate process. This program is started
once and reads the vocabulary. It forks a child for each grammar, which compiles the
grammar and then forks a child for each answer. The operating system limits the memory and
CPU time of all children. For a fast start, the program does not import anything from the
package. It exits when its standard input, a socket, is closed.
"""

import contextlib
import json
import os
import resource
import signal
import sys
import time
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle

import llguidance

# Bytes of memory that a child may use in addition to its parent's memory.
MEMORY = 64 << 20
# CPU seconds for compiling a grammar.
COMPILE_SECONDS = 0.8
# CPU seconds for computing the masks of an answer: an initial allowance, and an increase
# for each token. A typical mask takes 0.0001 to 0.005 seconds.
MASK_SECONDS = 0.5
MASK_SECONDS_PER_TOKEN = 0.02
# Niceness of the child processes, so that the model's threads take precedence.
NICENESS = 10


class GrammarVocabulary(llguidance.TokenizerWrapper):
    """A model's vocabulary, with the interface that llguidance expects."""

    def __init__(
        self, tokens: list[bytes], end_ids: list[int], special_ids: list[int]
    ) -> None:
        self.tokens = tokens
        self.special_token_ids = special_ids
        self.eos_token_id = end_ids[0]
        self.bos_token_id = None
        self.is_tokenizer_wrapper = True
        self.tree = llguidance.LLTokenizer(self, n_vocab=len(tokens), eos_token=end_ids)

    def __call__(self, text: str) -> list[int]:
        """Tokenize a string greedily, always with the longest possible token."""
        ids: list[int] = self.tree.greedy_tokenize(text)
        return ids


def compile_grammar(tokenizer: "llguidance.LLTokenizer", stream: Connection) -> None:
    """Compile the grammar in the first message, and fork a child for each answer.

    The response is M and the mask for the first token. If compiling fails, the response
    is E and an error message, and the process ends. Each handle that is received later is
    the stream of an answer, which is passed to `follow`.
    """
    os.nice(NICENESS)
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
        mask = next_mask(matcher)
    except ValueError as error:
        stream.send_bytes(b"E" + str(error).encode())
        return
    signal.setitimer(signal.ITIMER_PROF, 0)
    stream.send_bytes(b"M" + mask)
    while True:
        with Connection(recv_handle(stream)) as answer:
            if os.fork() == 0:
                stream.close()
                follow(matcher, answer)
                return


def follow(matcher: "llguidance.LLMatcher", answer: Connection) -> None:
    """Receive each token of an answer, and send the mask for the next token.

    Computing masks uses up the CPU time allowance, and each token increases it again.
    When the allowance is exhausted, the operating system kills the process.
    """
    allowance = MASK_SECONDS
    while True:
        token = int.from_bytes(answer.recv_bytes(), "little")
        started = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, allowance)
        try:
            if not matcher.consume_token(token):
                raise ValueError(matcher.get_error())
            mask = next_mask(matcher)
        except ValueError as error:
            answer.send_bytes(b"E" + str(error).encode())
            return
        signal.setitimer(signal.ITIMER_PROF, 0)
        used = time.process_time() - started
        allowance = min(MASK_SECONDS, max(allowance - used, 0) + MASK_SECONDS_PER_TOKEN)
        answer.send_bytes(b"M" + mask)


def next_mask(matcher: "llguidance.LLMatcher") -> bytes:
    """Return the mask for the next token, one bit per token, or raise ValueError."""
    mask: bytes = b"" if matcher.is_error() else matcher.compute_bitmask()
    if matcher.is_error():
        raise ValueError(matcher.get_error())
    return mask


def main() -> None:
    """Serve the parent process until it closes the control stream."""
    # These signals are sent to the whole process group, but only the parent handles them.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # avoids zombie processes
    control = Connection(sys.stdin.fileno())
    tokens, end_ids, special_ids = json.loads(control.recv_bytes())
    vocabulary = GrammarVocabulary(
        [token.encode("latin-1") for token in tokens], end_ids, special_ids
    )
    control.send_bytes(b"R")
    with contextlib.suppress(EOFError):
        while True:
            with Connection(recv_handle(control)) as stream:
                if os.fork() == 0:
                    control.close()
                    with contextlib.suppress(EOFError, OSError):
                        compile_grammar(vocabulary.tree, stream)
                    os._exit(0)


if __name__ == "__main__":
    main()
