import pytest
from hypothesis import given
from hypothesis import strategies as st

from src.cli.reader import block_is_open, decode_input, unquoted


@pytest.mark.parametrize(
    ("text", "is_open"),
    [
        ("", False),
        ("hello", False),
        ('say """', False),
        ('"""', True),
        ('""""', True),
        ('""""""', False),
        ('"""a\nb', True),
        ('"""a\nb"""', False),
        ('  """a"""  ', False),
        ('"""a""" b', True),
    ],
)
def test_a_block_is_open_until_it_ends_with_its_quotes(text: str, is_open: bool) -> None:
    assert block_is_open(text) is is_open


def test_the_quotes_are_not_part_of_the_message() -> None:
    assert unquoted('"""a\n/b"""') == ("a\n/b", True)
    assert unquoted('"""\na\n"""') == ("a", True)
    assert unquoted("/help") == ("/help", False)
    assert unquoted('""""""') == ("", True)


@given(st.binary())
def test_any_bytes_are_read_as_text_that_can_be_encoded(data: bytes) -> None:
    decode_input(data).encode()


@given(st.text(st.characters(categories=["Cs", "L"])))
def test_surrogates_never_get_into_a_message(text: str) -> None:
    unquoted(text)[0].encode()
    unquoted(f'"""{text}"""')[0].encode()
