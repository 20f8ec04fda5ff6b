"""Text to token ids and back."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from .bpe import BytePairEncoder
from .errors import TokenizerError, shown
from .special_tokens import BEGIN_OF_TEXT, END_OF_TEXT, SPECIAL_TOKEN_NAMES, STOP_TOKEN_NAMES
from .split import split


class Tokenizer:
    """The byte pair tokenizer of Llama 3: base ranks first, then 256 special ids.

    Args:
        ranks: every token's bytes with its rank, in the order of ranks 0, 1, 2..., as
            `read_tiktoken_file` gives them; all 256 single bytes are among them.

    Attributes:
        vocab_size: V, base ranks and special ids together.
        special_tokens: the id of each special name.
        bos_id: the id of `<|begin_of_text|>`.
        eos_id: the id of `<|end_of_text|>`.
        stop_ids: the ids a model may end its answer with.
    """

    def __init__(self, ranks: Mapping[bytes, int]) -> None:
        self._encoder = BytePairEncoder(ranks)
        self._token_bytes = [*ranks, *(name.encode() for name in SPECIAL_TOKEN_NAMES)]
        self._first_special_id = len(ranks)
        self.vocab_size = len(self._token_bytes)
        self.special_tokens: Mapping[str, int] = MappingProxyType(
            {name: number for number, name in enumerate(SPECIAL_TOKEN_NAMES, start=len(ranks))}
        )
        self.bos_id = self.special_id(BEGIN_OF_TEXT)
        self.eos_id = self.special_id(END_OF_TEXT)
        self.stop_ids = frozenset(self.special_id(name) for name in STOP_TOKEN_NAMES)

    def encode(self, text: str, *, bos: bool, eos: bool) -> list[int]:
        """Encode text. What looks like a special token in it is text like any other.

        Args:
            text: any string; a lone surrogate is read as U+FFFD, and a pair of surrogates as
                the character they stand for, as tiktoken does.
            bos: whether `<|begin_of_text|>` goes before.
            eos: whether `<|end_of_text|>` goes after.

        Returns:
            The token ids.

        Raises:
            TokenizerError: for anything but a string.
        """
        if not isinstance(text, str):
            raise TokenizerError(f"[encode] text must be str: got {type(text).__name__}")
        ids = [self.bos_id] if bos else []
        for pieces in split(_without_surrogates(text)):
            ids += self._encoder.encode_pieces(pieces)
        if eos:
            ids.append(self.eos_id)
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """Decode ids; a special id becomes its name, bytes that are no UTF-8 become U+FFFD.

        Args:
            ids: each 0 <= id < V.

        Returns:
            The text.

        Raises:
            TokenizerError: for an id outside the vocabulary.
        """
        return b"".join([self.token_bytes(token_id) for token_id in ids]).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """Look up the bytes of a token.

        Args:
            token_id: 0 <= token_id < V.

        Returns:
            The bytes; a special token's are its name. They need not be whole characters.

        Raises:
            TokenizerError: for an id outside the vocabulary.
        """
        if not 0 <= token_id < self.vocab_size:
            raise TokenizerError(
                f"[decode] 0 <= id < V must hold: got id {token_id}, V = {self.vocab_size}"
            )
        return self._token_bytes[token_id]

    def special_id(self, name: str) -> int:
        """Look up the id of a special token.

        Args:
            name: such as `<|eot_id|>`.

        Returns:
            Its id.

        Raises:
            TokenizerError: for a name that is none of the 256.
        """
        try:
            return self.special_tokens[name]
        except KeyError:
            raise TokenizerError(f"[special_id] no special token '{shown(name)}'") from None

    def is_special(self, token_id: int) -> bool:
        """Tell whether an id is one of the 256 special ones."""
        return self._first_special_id <= token_id < self.vocab_size


def _without_surrogates(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
