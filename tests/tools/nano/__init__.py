"""Tests of the code that made the bundled model."""
