"""An answer from the inside: run again with a trace, in a process apart, as a page of the explorer.

A trace shows all that runs in its process, so it cannot be on beside the answers to others.
"""

import asyncio
import json
import signal
import sys
from collections import deque
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..explorer import Store, document_of, model_name, run_traced
from ..explorer.write import write_html
from ..inference import SamplingArgs
from ..model import load_model
from .answers import Answer
from .errors import RequestError

# Answers that are remembered, and the seconds and bytes that a page may take.
_MOST_ANSWERS, _SECONDS, _MOST_BYTES = 64, 120, 32 << 20


class Insides:
    """The last answers of a server, of which one at a time runs again.

    `loading` has the arguments of `load_model` that gave the model; None where several processes
    run it.
    """

    def __init__(self, loading: dict[str, Any] | None) -> None:
        self._loading = loading
        self._answers: deque[tuple[str, bytes]] = deque(maxlen=_MOST_ANSWERS)
        self._one = asyncio.Lock()

    def remember(self, name: str, answer: Answer) -> None:
        """Keep what an answer was made of, under its id, which nobody can guess."""
        asked = {
            "loading": self._loading, "prompt_ids": list(answer.prompt_ids),
            "answer_ids": answer.ids, "sampling": asdict(answer.sampling),
        }  # fmt: skip
        self._answers.append((name, json.dumps(asked).encode()))

    async def page(self, name: str) -> bytes:
        """Run an answer again; return its page."""
        if self._loading is None:
            raise RequestError(400, "several processes run the model, and a trace needs one")
        asked = dict(self._answers).get(name)
        if asked is None:
            raise RequestError(404, "the answer is not known any more")
        async with self._one:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", __name__, cwd=Path(__file__).parents[2],
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )  # fmt: skip
            try:
                page, _ = await process.communicate(asked)
            finally:
                if process.returncode is None:  # the client went away
                    process.kill()
                    await process.wait()
        if process.returncode or len(page) > _MOST_BYTES:
            raise RequestError(503, f"the run with a trace failed, or took {_SECONDS} seconds")
        return page


def main() -> None:
    """Read what to run from standard input; write the page to standard output."""
    signal.alarm(_SECONDS)  # ends the process
    asked = json.load(sys.stdin)
    model, store, ids = load_model(**asked["loading"]), Store(), asked["answer_ids"]
    sampling = SamplingArgs(**asked["sampling"])
    run = run_traced(model, asked["prompt_ids"], len(ids), sampling, store, model_name(model),
                     forced_ids=ids)  # fmt: skip
    sys.stdout.writelines(write_html(document_of([run], store), store))


if __name__ == "__main__":
    main()
