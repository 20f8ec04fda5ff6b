"""The ops, one file per family."""
