"""What an engine is asked for: one object from the command line or the server to the
engine.
"""

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from .sampling import SamplingArgs


class TokenMask(Protocol):
    """Says which tokens may come next: a grammar, for one answer."""

    def allowed(self) -> Any:
        """Return which tokens may be drawn now; called once before each draw.

        Returns:
            Bools [V]; or as bits in words of 32, the lowest bit first; or None for all
            tokens. A token that it does not reach is forbidden.
        """

    def accept(self, token_id: int) -> None:
        """Take the token that was drawn."""


@runtime_checkable
class SlowMask(TokenMask, Protocol):
    """A mask that another process computes, so that `allowed` may have to wait."""

    def is_ready(self, seconds: float = 0.0) -> bool:
        """Wait at most some seconds; return whether `allowed` now returns, or raises, at
        once.
        """


@dataclass(frozen=True)
class Request:
    """What one answer is to be; `Answer` checks it.

    Attributes:
        prompt_ids: Token ids; at least one, and fewer than the context has positions.
        max_new_tokens: The most tokens to choose, `--max-tokens` on the command line;
            None goes on until another reason stops.
        sampling: How to choose; None stands for the defaults.
        stop: Texts that end the answer and are not part of it.
        end_ids: Ids that end the answer, in addition to those of the model.
        new_text: Whether the answer begins a text, so that the space which some
            tokenizers put before a text is not shown; otherwise it goes on from the
            prompt.
        candidates: The number of the most probable tokens that each step reports with the
            drawn one; 0 for none, which saves time.
        answer_ids: Tokens of the answer that were drawn before, without an end token: the
            answer goes on after them. Their text comes again, with that of the first
            step.
        forced_ids: The first tokens of the answer, one for each step, whatever is drawn:
            a trace shows an answer that is known.
        mask: Which tokens may be drawn, as a grammar says; the logits of all others
            become -inf before the sampler and `candidates` see them.
        time_limit: Seconds from when the request is made; None for no limit. An answer
            that has begun by then ends with its next step, for the reason `time limit`.
        prompt_candidates: The number of the most probable tokens to report for each place
            of the prompt, with its token. Such a prompt is read without cached tokens.
        client: Whose request it is: clients take turns.
        prefix_group: The requests that this one shares cached prefixes with: those of an
            equal group. Only prefixes of the group None are saved.
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
