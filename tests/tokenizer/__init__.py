"""Tests of src/tokenizer."""
