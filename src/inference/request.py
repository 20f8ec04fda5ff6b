"""The request that the command line or the server passes to an engine."""

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from ..ml import ScaledAdapters
from .sampling import SamplingArgs

if TYPE_CHECKING:
    from ..model import Interventions


class TokenMask(Protocol):
    """Restrict the next token of one answer, for example to follow a grammar."""

    def allowed(self) -> Any:
        """Return a mask of the tokens that may be drawn next.

        This is called once before each draw.

        Returns:
            A bool array [V], or a bit mask in 32-bit words with the lowest bit first, or
            None to allow all tokens. Tokens beyond the end of the mask are forbidden.
        """

    def accept(self, token_id: int) -> None:
        """Advance the mask by the token that was drawn."""


@runtime_checkable
class SlowMask(TokenMask, Protocol):
    """A mask computed by another process, so that `allowed` may block."""

    def is_ready(self, seconds: float = 0.0) -> bool:
        """Wait up to `seconds`, and return whether `allowed` would return at once."""


@dataclass(frozen=True)
class Request:
    """The prompt and the settings for one answer, which `Answer` validates.

    Attributes:
        prompt_ids: The prompt's token ids, at least one, and fewer than the context
            length.
        max_new_tokens: The maximum number of new tokens, which is called
            `--max-tokens` on the command line. With None, the answer continues until
            another stop condition is met.
        sampling: The sampling settings, or None for the defaults.
        stop: Strings that end the answer. They are not part of it.
        end_ids: Token ids that end the answer, in addition to the model's own.
        new_text: Whether the answer starts a new text instead of continuing the prompt.
            The leading space that some tokenizers add to a new text is then removed.
        candidates: How many of the most probable tokens each step reports, in addition to
            the drawn token. 0 disables the report and saves time.
        answer_ids: Tokens of the answer that were drawn earlier, without an end token.
            The answer continues after them, and its first step repeats their text.
        forced_ids: Tokens that replace the first drawn tokens, one per step. They are
            used to trace a known answer.
        mask: A restriction of the tokens that may be drawn, for example to follow a
            grammar. The logits of all other tokens are set to -inf before sampling and
            before `candidates` are reported.
        time_limit: The time limit in seconds after the request's creation, or None. If an
            answer has started by then, its next step is its last one, with the stop
            reason `time limit`.
        prompt_candidates: How many of the most probable tokens to report for each
            position of the prompt, in addition to its token. If it is not 0, the prompt
            is run without cached tokens.
        client: The owner of the request, for fair scheduling between clients.
        prefix_group: A group of requests that share cached prefixes with each other, but
            not with other groups. Only prefixes of the default group, None, are saved.
        adapters: LoRA adapters of the model that `load_adapter` has returned, with a
            factor for each, in the order in which their changes are added. A factor of 0
            has no effect. Requests share cached prefixes only if their adapters and
            factors are equal.
        interventions: Changes of tensors in all passes of this request, in the order in
            which they are applied; see `Intervention`. Requests share cached prefixes
            only if their interventions are the same objects.
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
    adapters: ScaledAdapters = ()
    interventions: "Interventions" = ()
