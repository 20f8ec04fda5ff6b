from src.cli.examples import EXAMPLES, example_lines


def test_there_are_the_six_prompts_of_the_source_engine() -> None:
    assert len(EXAMPLES) == 6
    assert [example.completion for example in EXAMPLES] == [True] + [False] * 5
    assert all(example.system for example in EXAMPLES[1:])


def test_the_list_counts_from_one_and_shows_prompt_and_system_prompt() -> None:
    assert example_lines()[0] == "1. [completion] Hello, my name is"
    assert example_lines()[5] == (
        "6. [chat] What is the flag of Turkey? (system: Answer with only one emoji)"
    )
