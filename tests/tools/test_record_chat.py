from tools.record_chat import PAGE, page


def test_the_page_of_a_chat_is_what_a_chat_shows() -> None:
    """`python -m tools.record_chat` makes it again."""
    assert PAGE.read_text(encoding="utf-8") == page()
