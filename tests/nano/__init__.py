"""Tests of the bundled model."""
