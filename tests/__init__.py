"""Tests. They mirror src, except for the modules in `OF_MODULES` of `test_imports`."""
