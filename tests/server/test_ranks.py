"""A server whose model several ranks run: the answers are those of one process."""

import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from src.model import Model
from tests.hardening.run_server_load import alone, ask, body_of
from tests.server.running import Running, running
from tests.support.mpi import LAUNCH, needs_mpi

pytestmark = needs_mpi


def compare(server: Running, model: Model, requests: int, seed: int) -> None:
    """Asks many things at once, with prefixes in common; each answer is that of one
    process.
    """
    chance = random.Random(seed)
    bodies = [body_of(chance) for _ in range(requests)]
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda body: ask(server, body, "whole", chance), bodies))
    assert found == [alone(model, body) for body in bodies]
    assert server.metric("cached_tokens_total") > 0


def test_two_ranks_serve_the_answers_of_one_process(tmp_path, bundled):
    with running(
        tmp_path, "-c", "1024", "--share-prefixes", launch=(*LAUNCH, "2")
    ) as server:
        compare(server, bundled, 8, 1)
        status, refused = server.ask("/explorer", {"id": server.chat()["id"]})
        assert status == 400
        assert "processes of the model must equal 1" in refused["error"]["message"]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_serve_chunks_shared_prefixes_and_evicted_blocks(tmp_path, bundled, ranks):
    flags = ("-c", "1024", "--slots", "3", "--share-prefixes")
    with running(tmp_path, *flags, launch=(*LAUNCH, str(ranks))) as server:
        compare(server, bundled, 60, ranks)
        assert server.metric("blocks") == 12
