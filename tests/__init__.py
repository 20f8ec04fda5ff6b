"""Tests; they mirror src path for path."""
