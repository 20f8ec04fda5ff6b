"""Hundreds of requests, 32 at once, with clients that go away and clients that read
slowly.
"""

import pytest

from tests.hardening.run_server_load import check, check_form
from tests.support.many import many


@pytest.mark.parametrize("count", [60, many])
def test_requests_at_once_have_the_answers_that_they_have_alone(server, bundled, count):
    check(server, bundled, count, seed=count)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["nf4", "int8", "gguf"])
def test_quantized_models_and_gguf_files_have_the_answers_that_they_have_alone(
    tmp_path, form
):
    check_form(tmp_path, form, 200, 3)
