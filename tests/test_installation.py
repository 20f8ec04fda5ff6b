"""The command that installs what is missing, in a checkout and in an installed
package.
"""

import subprocess
import sys

import pytest

from src.installation import install_hint
from tests.test_main import PLAIN, REPOSITORY


def test_a_checkout_installs_itself():
    assert install_hint() == "run `pip install -e .` in the repository"
    assert install_hint(builds=True) == install_hint()
    assert install_hint("mpi") == "run `pip install -e '.[mpi]'` in the repository"


PACKAGES = {"src": "-e '.[{}]'` in the repository", "llama_bolts": "'llama-bolts[{}]'`"}


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize(
    ("absent", "arguments", "extra"),
    [
        ("starlette", ["--serve", "127.0.0.1:0"], "serve"),
        ("msgspec", ["--serve", "127.0.0.1:0"], "serve"),
        ("transformers", ["--verify"], "oracle"),
        ("mpi4py", ["-p", "x"], "mpi"),
    ],
)
def test_an_extra_is_named_as_this_copy_of_the_package_installs_it(
    tmp_path, package, absent, arguments, extra
):
    (tmp_path / package).symlink_to(REPOSITORY / "src")
    hidden = f"sys.modules[{absent!r}] = None"
    (tmp_path / "sitecustomize.py").write_text(f"import sys\n{hidden}\n")
    environment = PLAIN | {"PYTHONPATH": str(tmp_path)}
    if extra == "mpi":
        environment |= {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}
    command = [sys.executable, "-m", package, *arguments]
    done = subprocess.run(
        command, cwd=tmp_path, input=b"", capture_output=True, env=environment
    )
    assert done.returncode != 0
    [line] = done.stderr.decode().splitlines()
    assert line.endswith(f"run `pip install {PACKAGES[package].format(extra)}"), line
