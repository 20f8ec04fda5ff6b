"""Runs passes of models on the ranks of MPI: `mpirun -n N python -m
tests.model.rank_cases FILE`.

FILE is a JSON list of [path of a model, what to quantize it to or null, or "resident", or
"dequantize" and perhaps what to quantize it to after that; "activations" among these
words rounds to 8 bits, "cache" stores keys and values in q8_0, "interventions" runs all
passes with one intervention at each place, and "adapter PATH" runs all passes with an
adapter]. Rank 0 prints a JSON list of what each case gave: a digest of all logits, and for
"resident" a list with the bytes of the weight files that are resident on each rank.
"""

import hashlib
import json
import math
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from src import ml
from src.model import (
    InferenceContext,
    Intervention,
    Model,
    intervene,
    load_adapter,
    load_model,
)
from src.model.places import PLACES
from src.model.ranks import RankedNetwork, Ranks
from src.trace.events import size_of


def interventions_at_all_places(model: Model) -> list[Intervention]:
    """Returns an intervention at each place that all forms of attention have, which
    scales, adds or replaces a part of it.
    """
    own = getattr(model.transformer, "own", None)
    sizes = (model.args if own is None else own.args).sizes
    found = []
    for number, place in enumerate(place for place in PLACES if place.path):
        if place.is_spelled_out:
            continue
        path = place.path.replace("L.", "1.", 1)
        if number % 3 == 0:
            found.append(Intervention.scale(model, f"{path}[1:]@2:", 1.25))
        elif number % 3 == 1:
            shape = [size_of(letter, sizes) for letter in place.letters[1:]]
            vector = np.linspace(-1, 1, math.prod(shape)).reshape(shape)
            found.append(Intervention.add(model, path, vector))
        else:
            found.append(Intervention.zero(model, f"{path}[1]"))
    return found


def digest(
    model: Model, adapters: ml.ScaledAdapters = (), changes: Sequence[Intervention] = ()
) -> str:
    """Runs chunks, single tokens, drafts that are taken back,
    and two contexts by turns.
    """
    found = hashlib.sha256()
    forward = model.transformer.forward
    ids = [(7 * n) % 61 for n in range(40)]
    one, two = (InferenceContext(model.args, length) for length in (48, 24))
    for context, chunk, start, rows in (
        (one, ids[:5], 0, False),
        (one, ids[5:12], 5, True),
        (two, ids[3:20], 0, False),
        (one, ids[12:13], 12, False),
        (one, ids[20:26], 13, True),
        (two, ids[9:10], 17, False),
        (one, ids[30:31], 14, False),
        (one, ids[31:32], 15, False),
    ):
        wanted = len(chunk) if rows else 1
        with (
            ml.adapted_rows([(len(chunk), wanted, adapters)]),
            intervene(model, *changes),
        ):
            logits = forward(context, chunk, start, all_positions=rows).numpy()
        assert logits.shape == (
            len(chunk) if rows else 1,
            model.source.args.vocab_size or 131,
        )
        found.update(logits.tobytes())
    del two
    found.update(forward(one, ids[:2], 16).numpy().tobytes())
    return found.hexdigest()


def resident_bytes(paths: list[Path]) -> int:
    """Counts what /proc says is resident of mapped files."""
    names = {str(path.resolve()) for path in paths}
    own = False
    total = 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            own = line.split(None, 5)[-1] in names
        elif own and line.startswith("Rss:"):
            total += 1024 * int(line.split()[1])
    return total


def fail(error: BaseException) -> NoReturn:
    print(repr(error), file=sys.stderr, flush=True)
    os._exit(1)


def follow(model: Model, ranks: Ranks) -> None:
    contexts: dict[int, InferenceContext] = {}
    while (command := ranks.next_command())[0] != "end":
        assert isinstance(model.transformer, RankedNetwork)
        model.transformer.follow(contexts, *command[1:])
    assert len(contexts) < 2  # what rank 0 dropped is dropped here


def run(cases: list[list[Any]], ranks: Ranks | None) -> list[Any]:
    results: list[Any] = []
    for path, how in cases:
        words = [] if how is None or how == "resident" else how.split()
        dequantize = "dequantize" in words
        activations = "int8" if "activations" in words else "int16"
        cache_type = "q8_0" if "cache" in words else "plain"
        intervenes = "interventions" in words
        adapter_path = None
        if "adapter" in words:
            at = words.index("adapter")
            adapter_path = words[at + 1]
            words = words[:at]
        settings = ("dequantize", "activations", "cache", "interventions")
        formats = [word for word in words if word not in settings]
        model = load_model(
            path,
            dequantize=dequantize,
            quantize=formats[0] if formats else None,
            activations=activations,
            cache_type=cache_type,
            ranks=ranks,
        )
        adapters: ml.ScaledAdapters = ()
        if adapter_path is not None:
            adapters = ((load_adapter(model, adapter_path), -1.5),)
        if ranks is not None and ranks.rank:
            follow(model, ranks)
            results.append(None)
        else:
            changes = interventions_at_all_places(model) if intervenes else []
            results.append(digest(model, adapters, changes))
            if ranks is not None:
                ranks.command("end")
        if how == "resident" and ranks is not None:
            results[-1] = ranks.comm.allgather(resident_bytes(model.checkpoint.files))
    return results


def main() -> None:
    ml.set_num_threads(1)
    cases = json.loads(Path(sys.argv[1]).read_text())
    from mpi4py import MPI

    ranks = Ranks(MPI.COMM_WORLD, fail)
    found = run(cases, ranks)
    if ranks.rank == 0:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
