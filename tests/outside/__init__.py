"""Tests of what comes from outside."""
