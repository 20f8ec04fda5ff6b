"""The predefined prompts of the source engine.

Source: adalkiran/llama-nuts-and-bolts, `predefinedPrompts` in cmd/main.go (shown in its chapter
docs/11-ASKING-FOR-USER-INPUT.md at 3aef2be).
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Example:
    """One predefined prompt.

    Attributes:
        prompt: the user's message, or the text to continue when `completion` is set.
        system: the system prompt; None for a completion.
        completion: continue raw text instead of answering a message.
    """

    prompt: str
    system: str | None = None
    completion: bool = False

    @property
    def description(self) -> str:
        """Return the example on one line: its kind, its prompt and its system prompt."""
        kind = "completion" if self.completion else "chat"
        system = f" (system: {self.system})" if self.system else ""
        return f"[{kind}] {self.prompt}{system}"


EXAMPLES = (
    Example("Hello, my name is", completion=True),
    Example("Describe your theory.", system="You are Einstein"),
    Example(
        "Can you explain what is Theory of relativity?",
        system="Answer in 20 words, directly, and without an introduction",
    ),
    Example("Explain what is quantum computer in 20 words.", system="You are a pirate"),
    Example("How to go from Beijing to NY?", system="Always answer with emojis"),
    Example("What is the flag of Turkey?", system="Answer with only one emoji"),
)


def example_lines() -> list[str]:
    """Return the numbered list of the examples, a line each, counted from 1."""
    return [f"{number}. {example.description}" for number, example in enumerate(EXAMPLES, 1)]
