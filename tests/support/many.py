"""How many random cases the slow tests take."""

import os

import pytest

MANY = int(os.environ.get("MANY", "250"))
many = pytest.param(MANY, marks=pytest.mark.slow)
