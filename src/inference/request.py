"""The request for one answer, from the command line or the server to the engine."""

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from .sampling import SamplingArgs


class TokenMask(Protocol):
    """Restricts the tokens that may come next in one answer, for example to a grammar."""

    def allowed(self) -> Any:
        """Return the tokens that may be drawn now; called once before each draw.

        Returns:
            Bools [V], or bits in words of 32, the lowest bit first, or None for all
            tokens. A token beyond the end of the mask is forbidden.
        """

    def accept(self, token_id: int) -> None:
        """Add the token that was drawn."""


@runtime_checkable
class SlowMask(TokenMask, Protocol):
    """A mask that another process computes, so that `allowed` may have to wait."""

    def is_ready(self, seconds: float = 0.0) -> bool:
        """Wait at most some seconds; return whether `allowed` would not wait."""


@dataclass(frozen=True)
class Request:
    """The prompt and the settings of one answer; `Answer` checks it.

    Attributes:
        prompt_ids: Token ids; at least one, and fewer than the context has positions.
        max_new_tokens: The most tokens to choose, `--max-tokens` on the command line;
            None continues until another reason to stop.
        sampling: The sampling settings; None selects the defaults.
        stop: Texts that end the answer and are not part of it.
        end_ids: Ids that end the answer, in addition to those of the model.
        new_text: Whether the answer begins a text, so that the space which some
            tokenizers put before a text is not shown. Otherwise it continues the prompt.
        candidates: The number of most probable tokens that each step reports with the
            drawn token; 0 for none, which saves time.
        answer_ids: Tokens of the answer that were drawn earlier, without an end token.
            The answer continues after them, and the first step repeats their text.
        forced_ids: The first tokens of the answer, one for each step, instead of the
            drawn tokens. A trace of a known answer uses them.
        mask: Restricts the tokens to draw, for example to a grammar. The logits of all
            other tokens become -inf before the sampler and `candidates` see them.
        time_limit: Seconds from the creation of the request; None for no limit. An answer
            that has begun by then ends with its next step, for the reason `time limit`.
        prompt_candidates: The number of most probable tokens to report for each place of
            the prompt, with its token. Such a prompt is run without cached tokens.
        client: The owner of the request; clients take turns.
        prefix_group: Requests share cached prefixes with the requests of an equal group
            only. Only prefixes of the group None are saved.
    """

    prompt_ids: Sequence[int]
    max_new_tokens: int | None = None
    sampling: SamplingArgs | None = None
    stop: Sequence[str] = ()
    end_ids: Collection[int] = ()
    new_text: bool = False
    candidates: int = 0
    answer_ids: Sequence[int] = ()
    forced_ids: Sequence[int] = ()
    mask: TokenMask | None = None
    time_limit: float | None = None
    prompt_candidates: int = 0
    client: Hashable = None
    prefix_group: Hashable = None
