"""The command line: arguments, one-shot prompts, the chat in the terminal, reports on a model."""
