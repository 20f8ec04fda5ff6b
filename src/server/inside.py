"""An answer from the inside: run again with a trace, in a process apart, as a page of the
explorer.

A trace shows all that runs in its process, so it cannot be on beside the answers to
others.
"""

import asyncio
import json
import secrets
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..explorer import Store, run_traced, write_html
from ..inference import SamplingArgs
from ..model import load_model
from .errors import RequestError

# Answers that are remembered, pages that are kept, and the seconds and bytes that one may
# take.
_MOST_ANSWERS = 64
_MOST_PAGES = 4
_SECONDS = 120
_MOST_BYTES = 32 << 20


class Insides:
    """The last answers of a server, and the `pages` that were made of some.

    `loading` has the arguments of `load_model` that gave the model; None where several
    processes run it.
    """

    def __init__(self, loading: dict[str, Any] | None) -> None:
        self._loading = loading
        self._answers: deque[tuple[str, bytes]] = deque(maxlen=_MOST_ANSWERS)
        self.pages: deque[tuple[str, bytes]] = deque(maxlen=_MOST_PAGES)
        self._one = asyncio.Lock()

    def remember(
        self,
        name: str,
        prompt_ids: Sequence[int],
        answer_ids: list[int],
        sampling: SamplingArgs,
    ) -> None:
        """Keep what an answer was made of, under its id."""
        asked = self._loading, [*prompt_ids], answer_ids, asdict(sampling)
        self._answers.append((name, json.dumps(asked).encode()))

    async def look(self, name: str) -> str:
        """Make the page of an answer; return the page's name, which nobody can guess.

        Raise RequestError where the answer is not known any more, or cannot run in time.
        """
        if self._loading is None:
            raise RequestError(
                400, "several processes run the model, and a trace needs one"
            )
        asked = dict(self._answers).get(name)
        if asked is None:
            raise RequestError(404, "id: the answer is not known any more", "id")
        async with self._one:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                __name__,
                cwd=Path(__file__).parents[2],
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
            try:
                page, _ = await asyncio.wait_for(process.communicate(asked), _SECONDS)
            except TimeoutError:
                page = b""
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
        if process.returncode or len(page) > _MOST_BYTES:
            raise RequestError(
                503, f"the run with a trace failed, or took {_SECONDS} seconds"
            )
        made = secrets.token_urlsafe(24)
        self.pages.append((made, page))
        return made


def main() -> None:
    """Read what to run from standard input; write the page to standard output."""
    loading, prompt_ids, ids, sampling = json.load(sys.stdin)
    model = load_model(**loading)
    store = Store()
    drawn = SamplingArgs(**sampling)
    run = run_traced(model, prompt_ids, len(ids), drawn, store, forced_ids=ids)
    sys.stdout.writelines(write_html([run], store))


if __name__ == "__main__":
    main()
