"""The exercises, one in each module."""
