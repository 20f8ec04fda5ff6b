"""Run the examples in the documentation, and generate parts of it from code."""
