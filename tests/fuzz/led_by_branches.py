"""The process in which atheris runs one target; `tests.fuzz.run` starts it."""

import random
import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["src"]):
    from tests.fuzz.targets import TARGETS, prepare, run, seeds

from tests.fuzz.mutation import Mutator


def main() -> None:
    """Fuzz `TARGET FOLDER CORPUS [libFuzzer's options]`; ends the process."""
    target, folder = TARGETS[sys.argv[1]], Path(sys.argv[2])
    prepare(target, folder)
    valid = seeds(target, folder)

    def mutate(data: bytes, longest: int, seed: int) -> bytes:
        chance = random.Random(seed)
        if chance.random() < 0.5:
            return atheris.Mutate(data, longest)
        return Mutator(target.name, valid, seed).changed(data, longest)

    def read(data: bytes) -> None:
        run(target, data, folder)

    atheris.Setup([sys.argv[0], *sys.argv[3:]], read, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
