"""Hundreds of requests, 32 at once, with clients that go away and clients that read slowly."""

from pathlib import Path

import pytest

from src.model import load_model
from tests.hardening.run_server_load import check, check_form
from tests.server.running import Running


def test_sixty_requests_at_once_have_the_answers_that_they_have_alone(server: Running) -> None:
    check(server, load_model(), 60, 1)


@pytest.mark.slow
def test_hundreds_of_requests_have_the_answers_that_they_have_alone(server: Running) -> None:
    check(server, load_model(), 400, 2)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["nf4", "int8", "gguf"])
def test_quantized_models_and_gguf_files_have_the_answers_that_they_have_alone(
    tmp_path: Path, form: str
) -> None:
    check_form(tmp_path, form, 200, 3)
