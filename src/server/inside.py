"""Explorer pages: rerun an answer with a trace in a separate process.

A trace records everything that its process computes, so other answers cannot be computed
in the same process.
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
from ..model import LoadedAdapter, load_adapter, load_model
from ..model.interventions import parse_intervention
from .errors import RequestError

# Maximum numbers of recorded answers, pages, seconds per page and bytes per page.
_MOST_ANSWERS = 64
_MOST_PAGES = 4
_SECONDS = 120
_MOST_BYTES = 32 << 20


class AnswerPages:
    """The most recent answers of a server, and explorer pages created from them.

    `loading` contains the arguments with which `load_model` loads the model. It is None
    if several processes run the model.
    """

    def __init__(self, loading: dict[str, Any] | None) -> None:
        self._loading = loading
        self._answers: deque[tuple[str, bytes]] = deque(maxlen=_MOST_ANSWERS)
        self.pages: deque[tuple[str, bytes]] = deque(maxlen=_MOST_PAGES)
        self._lock = asyncio.Lock()

    def record(
        self,
        name: str,
        prompt_ids: Sequence[int],
        answer_ids: list[int],
        sampling: SamplingArgs,
        adapters: Sequence[tuple[LoadedAdapter, float]] = (),
        interventions: Sequence[str] = (),
    ) -> None:
        """Record the input and tokens of an answer under its id."""
        paths = [(str(each.path.absolute()), scale) for each, scale in adapters]
        changes = [*interventions]
        settings = asdict(sampling)
        request = self._loading, [*prompt_ids], answer_ids, settings, paths, changes
        self._answers.append((name, json.dumps(request).encode()))

    async def create(self, name: str) -> str:
        """Create the explorer page of an answer; return the page's random name.

        Raises RequestError if the answer is unknown or the run exceeds the time limit.
        """
        if self._loading is None:
            raise RequestError(
                400, "[explorer] processes of the model must equal 1: got several"
            )
        request = dict(self._answers).get(name)
        if request is None:
            raise RequestError(
                404, "id: expected one of the last answers, got another id", "id"
            )
        async with self._lock:
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
                page, _ = await asyncio.wait_for(process.communicate(request), _SECONDS)
            except TimeoutError:
                page = b""
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
        if process.returncode or len(page) > _MOST_BYTES:
            raise RequestError(
                503, f"the run with a trace failed or took more than {_SECONDS} seconds"
            )
        page_name = secrets.token_urlsafe(24)
        self.pages.append((page_name, page))
        return page_name


def main() -> None:
    """Read a request from standard input and write its page to standard output."""
    loading, prompt_ids, ids, sampling, paths, changes = json.load(sys.stdin)
    model = load_model(**loading)
    adapters = tuple((load_adapter(model, path), scale) for path, scale in paths)
    store = Store()
    run = run_traced(
        model,
        prompt_ids,
        len(ids),
        SamplingArgs(**sampling),
        store,
        forced_ids=ids,
        adapters=adapters,
        interventions=tuple(parse_intervention(model, text) for text in changes),
    )
    sys.stdout.writelines(write_html([run], store))


if __name__ == "__main__":
    main()
