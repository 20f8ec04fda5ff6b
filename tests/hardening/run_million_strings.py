"""Compare a million strings with the oracle of each kind of tokenizer.

`python -m tests.hardening.run_million_strings` runs the tests that compare 50 000 in the
slow tier.
"""

import os
import sys

import pytest

if __name__ == "__main__":
    os.environ["LLAMA_BOLTS_TEST_STRINGS"] = (
        "1000000"  # read when the tests are collected
    )
    arguments = ["-m", "slow", "-k", "many_strings", "tests/tokenizer", *sys.argv[1:]]
    sys.exit(pytest.main(arguments))
