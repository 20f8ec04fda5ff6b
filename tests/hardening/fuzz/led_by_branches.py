"""The process in which atheris runs one target; `tests.hardening.fuzz.run` starts it."""

import random
import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["src"]):
    from tests.hardening.fuzz.bed import Bed
    from tests.hardening.fuzz.targets import TARGETS

from tests.hardening.fuzz.mutation import Mutator


def main() -> None:
    """Fuzz `TARGET FOLDER CORPUS [libFuzzer's options]`; ends the process."""
    bed = Bed(TARGETS[sys.argv[1]], Path(sys.argv[2]))

    def mutate(data: bytes, longest: int, seed: int) -> bytes:
        if random.Random(seed).random() < 0.5:
            return atheris.Mutate(data, longest)
        return Mutator(bed.target.name, bed.starts, seed).changed(data, longest)

    atheris.Setup([sys.argv[0], *sys.argv[3:]], bed.read, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
