"""Run a model with a trace for the explorer, with sampled or given tokens."""

from collections.abc import Sequence
from typing import Any

from .. import trace
from ..inference import (
    ChatTemplate,
    InferenceEngine,
    Message,
    SamplingArgs,
    encode_chat,
    end_ids,
)
from ..inference.patching import PatchScan, scan_patches
from ..ml import ScaledAdapters
from ..model import Interventions, Model
from ..trace.tracer import Tracer
from ..untrusted import shown
from .collect import Collector
from .errors import ExplorerError
from .texts import token_text
from .write import DEFAULT_LIMIT, Store, write_html


class Page(str):
    """The explorer's HTML, which a notebook displays in a frame."""

    def _repr_html_(self) -> str:
        escaped = self.replace("&", "&amp;").replace('"', "&quot;")
        style = "width:100%;height:800px;border:1px solid"
        return (
            f'<iframe sandbox="allow-scripts" style="{style}" '
            f'srcdoc="{escaped}"></iframe>'
        )


def explore(
    model: Model,
    prompt: str | Sequence[Message],
    max_new_tokens: int = 32,
    sampling: SamplingArgs | None = None,
    *,
    beside: Model | None = None,
    beside_prompt: str | Sequence[Message] | None = None,
    adapters: ScaledAdapters = (),
    interventions: Interventions = (),
    patches: bool = False,
    limit: float = DEFAULT_LIMIT,
) -> Page:
    """Run a prompt with a trace on, and return a page that shows the run.

    Args:
        model: The model, with its tokenizer.
        prompt: Text to continue, or the messages of a chat.
        max_new_tokens: The maximum number of tokens in an answer.
        sampling: The sampling settings.
        beside: Another model that runs the same tokens, for comparison, or the same model
            to run them without adapters and interventions.
        beside_prompt: Another prompt to run, for comparison. It is run by `beside` if
            given, otherwise by `model` with its adapters and interventions.
        adapters: LoRA adapters of the model, with their factors.
        interventions: Changes of tensors in the run.
        patches: Whether to patch each place of the run with its tensor in the run of
            `beside_prompt`, one after the other, as `scan_patches` does. Both prompts
            need the same number of tokens, and `beside` must be absent.
        limit: The maximum page size in megabytes (10^6 bytes).

    Raises:
        ExplorerError: The limit is too small.
        InferenceError, ModelError: As in `InferenceEngine.generate`.
        PromptError: The prompts cannot be patched, as in `scan_patches`.
    """
    has_two = beside is not None or beside_prompt is not None
    store = Store(limit, 1 + has_two)
    ids, ends = prompt_of(model, prompt)
    settings = max_new_tokens, sampling or SamplingArgs()
    run = run_traced(
        model,
        ids,
        *settings,
        store,
        end_ids=ends,
        adapters=adapters,
        interventions=interventions,
    )
    runs = [run]
    if patches and (beside is not None or beside_prompt is None):
        raise ExplorerError("patches=True requires beside_prompt, and not beside")
    if has_two:
        other = beside or model
        second = None if beside_prompt is None else prompt_of(other, beside_prompt)
        scaled = adapters if beside is None else ()
        changes = interventions if beside is None else ()
        runs.append(run_beside(other, run, second, *settings, store, scaled, changes))
        if patches and second is not None:
            run["patches"] = patches_record(scan_patches(model, ids, second[0]))
    run["prompt"] = prompt_record(prompt)
    return Page("".join(write_html(runs, store)))


def patches_record(scan: PatchScan) -> dict[str, Any]:
    """Return the effects of patching as the document contains them."""
    return {
        "answer": scan.answer,
        "otherAnswer": scan.other_answer,
        "measure": scan.measure,
        "otherMeasure": scan.other_measure,
        "residual": scan.residual.round(4).tolist(),
        "heads": scan.heads.round(4).tolist(),
        "feedForward": scan.feed_forward.round(4).tolist(),
    }


def prompt_record(prompt: str | Sequence[Message]) -> dict[str, Any]:
    """Return a prompt as the document contains it: its text, or its messages."""
    if isinstance(prompt, str):
        return {"messages": None, "text": prompt}
    messages = [{"role": each.role, "content": each.content} for each in prompt]
    return {"messages": messages, "text": None}


def prompt_of(
    model: Model,
    prompt: str | Sequence[Message],
    chat_format: str | ChatTemplate | None = None,
    think: bool = True,
) -> tuple[list[int], frozenset[int]]:
    """Return the token ids of a prompt, and additional ids that end its answer.

    Args:
        model: The model, whose tokenizer and default chat format are used.
        prompt: Text to continue, or the messages of a chat.
        chat_format: A template, or a key of `CHAT_FORMATS`.
        think: Whether the model may think before it answers, if the format supports it.
    """
    engine = InferenceEngine(model, 1)
    tokenizer = engine._tokenizer()
    if isinstance(prompt, str):
        return tokenizer.encode(prompt, bos=tokenizer.adds_bos, eos=False), frozenset()
    template = engine.chat_format if chat_format is None else chat_format
    ids = encode_chat(tokenizer, list(prompt), chat_format=template, think=think)
    return ids, frozenset(end_ids(tokenizer, template))


def run_traced(
    model: Model,
    ids: Sequence[int],
    max_new_tokens: int,
    sampling: SamplingArgs,
    store: Store,
    end_ids: frozenset[int] = frozenset(),
    forced_ids: Sequence[int] = (),
    adapters: ScaledAdapters = (),
    interventions: Interventions = (),
) -> dict[str, Any]:
    """Run a prompt in a new context with a trace on, and return its document section.

    Args:
        model: The model.
        ids: The token ids of the prompt.
        max_new_tokens: The maximum number of tokens in the answer.
        sampling: The sampling settings.
        store: The store for the arrays.
        end_ids: Ids that end the answer, in addition to the model's own.
        forced_ids: The tokens of the answer, if they are given instead of sampled.
        adapters: LoRA adapters of the model, with their factors.
        interventions: Changes of tensors in the run.
    """
    length = min(len(ids) + max_new_tokens, model.args.max_context_length)
    engine = InferenceEngine(model, max(length, 1))
    collector = Collector(model, store, bool(forced_ids), adapters, interventions)
    tracer = Tracer(
        model.args.sizes,
        collector.write,
        weight_letters=model.args.tensor_letters,
        values=collector.wants_values,
    )
    trace.start(tracer)
    try:
        trace.mark(1, details={"ids": list(ids)})
        for _ in engine.generate(
            ids,
            max_new_tokens,
            sampling,
            end_ids=end_ids,
            forced_ids=forced_ids,
            adapters=adapters,
            interventions=interventions,
        ):
            pass
    finally:
        trace.stop()
    return collector.finish()


def run_beside(
    model: Model,
    first: dict[str, Any],
    prompt: tuple[list[int], frozenset[int]] | None,
    max_new_tokens: int,
    sampling: SamplingArgs,
    store: Store,
    adapters: ScaledAdapters = (),
    interventions: Interventions = (),
) -> dict[str, Any]:
    """Run a second prompt, or the tokens of the first run, for comparison.

    Without a second prompt, the model runs the tokens of the first run, so that the text
    before each position is the same. The page then shows each position at which the model
    would have sampled a different token.

    Raises:
        ExplorerError: The first run's tokens have different text in this model. Such a
            model requires a prompt.
    """
    if prompt is not None:
        ids, ends = prompt
        return run_traced(
            model,
            ids,
            max_new_tokens,
            sampling,
            store,
            end_ids=ends,
            adapters=adapters,
            interventions=interventions,
        )
    tokens = first["tokens"]
    for token in tokens:
        is_known = token < model.args.vocab_size
        text = token_text(model.tokenizer, token)[0] if is_known else "no token"
        expected = first["texts"][str(token)][0]
        if text != expected:
            raise ExplorerError(
                "--explore-with: expected a model with the same tokens, or "
                f"--explore-prompt: token {token}: expected {shown(expected)}, got "
                f"{shown(text)}"
            )
    prompt_length = len(tokens) - sum("token" in each for each in first["passes"])
    ids = tokens[:prompt_length]
    answer = tokens[prompt_length:]
    return run_traced(
        model,
        ids,
        len(answer),
        sampling,
        store,
        forced_ids=answer,
        adapters=adapters,
        interventions=interventions,
    )
