"""Tests of the bundled model and of what made it."""
