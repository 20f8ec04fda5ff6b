"""Times the all-gathers of passes between two network namespaces of a limited rate.

`python -m tests.bench.bench_rank_network` prints the table of docs/PAST-ONE-MACHINE.md,
which has them beside what the simulation says. It needs root, `ip`, `tc` and mpirun. Each
namespace is a machine to mpirun, with a daemon of its own; TCP over a veth pair joins
them. A queue of tc (tbf) limits the rate. With `--rank` it is one of the two.
"""

import contextlib
import itertools
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import numpy as np

from src import ml
from src.model.ranks import Ranks
from tests.bench.bench_rank_times import MODELS, gathers, wire_seconds
from tests.support.mpi import MPIRUN, ROOT

RATES = (1, 10)  # Gb/s
PASSES = {"token": 1, "prompt of 32": 32}
TURNS = 3
ROUNDS = 5
NAMES = "lbranka", "lbrankb"
HEADING = (
    "| gathers of the 8B | latency of messages | on the wire | moved by processors | "
    "simulated | measured | measured / simulated |\n|---|---:|---:|---:|---:|---:|---:|"
)
BURST_SECONDS = 1e-3  # of the rate, which tbf lets pass at once
AGENT = (
    "#!/bin/sh\nshift\nexec ip netns exec {0} unshare --uts sh -c 'hostname {0}; "
    '\'"$*"\n'
)


class NotAllowedError(Exception):
    """This machine has no namespaces, or no queue of a limited rate; the text says what
    failed.
    """


def _do(command: str) -> None:
    try:
        subprocess.run(shlex.split(command), capture_output=True, text=True, check=True)
    except FileNotFoundError as error:
        raise NotAllowedError(str(error)) from None
    except subprocess.CalledProcessError as error:
        raise NotAllowedError(f"{command}: {error.stderr.strip()}") from None


def _leave() -> None:
    for name in NAMES:
        with contextlib.suppress(NotAllowedError):
            _do(f"ip netns del {name}")


@contextlib.contextmanager
def machines() -> Iterator[None]:
    """Makes two namespaces that reach each other, and removes them."""
    _leave()
    try:
        for name in NAMES:
            _do(f"ip netns add {name}")
        first, second = NAMES
        _do(
            f"ip link add {first}0 netns {first} type veth peer name {second}0 netns "
            f"{second}"
        )
        for number, name in enumerate(NAMES, 1):
            _do(f"ip -n {name} addr add 10.77.0.{number}/24 dev {name}0")
            _do(f"ip -n {name} link set {name}0 up")
            _do(f"ip -n {name} link set lo up")
        yield
    finally:
        _leave()


def limit(gigabits: float) -> None:
    """Limits the rate of both directions, not at all by 0.

    A sender that waited may then send faster for a moment, so that waiting costs less
    than it does in a network: the queue has saved up to `BURST_SECONDS` of its rate.
    """
    for name in NAMES:
        with contextlib.suppress(NotAllowedError):
            _do(f"ip netns exec {name} tc qdisc del dev {name}0 root")
        if gigabits:
            burst = max(int(gigabits * 1e9 / 8 * BURST_SECONDS), 1 << 17)
            how = f"tbf rate {gigabits}gbit burst {burst} latency 50ms"
            _do(f"ip netns exec {name} tc qdisc add dev {name}0 root handle 1: {how}")


def two_ranks() -> dict[str, float]:
    """Runs this file as a rank of each machine; returns the seconds of each pass."""
    with tempfile.TemporaryDirectory() as directory:
        agent = Path(directory) / "agent"
        agent.write_text(AGENT.format(NAMES[1]))
        agent.chmod(0o700)
        command = f"""
            {MPIRUN} --allow-run-as-root --host 10.77.0.1:1,10.77.0.2:1 -n 2 --map-by node
            --bind-to none --prtemca plm_ssh_agent {agent} --mca pml ob1 --mca btl tcp,self
            --mca btl_tcp_if_include 10.77.0.0/24 -x PYTHONPATH
            {sys.executable} -m tests.bench.bench_rank_network --rank
        """
        inside = f"hostname {NAMES[0]}; cd {ROOT}; exec {' '.join(command.split())}"
        done = subprocess.run(
            ["ip", "netns", "exec", NAMES[0], "unshare", "--uts", "sh", "-c", inside],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
    if done.returncode:
        raise NotAllowedError(f"mpirun: {done.stderr.strip()}")
    return json.loads(done.stdout)


def rank() -> None:
    """Gathers what passes of the 8B gather; rank 0 prints the best times, and of an empty
    one.
    """
    from mpi4py import MPI

    def fail(error: BaseException) -> NoReturn:
        raise error

    ranks = Ranks(MPI.COMM_WORLD, fail)
    best = dict[str, float]()

    def seconds(sizes: list[int], rows: int, times: int) -> float:
        parts = [(ml.Tensor.from_numpy(np.zeros((rows, each // rows // 2), np.uint8)),
                  [0, each // rows // 2, each // rows]) for each in sizes]  # fmt: skip
        ranks.comm.Barrier()
        began = time.perf_counter()
        for _ in range(times):
            for part, bounds in parts:
                ranks.all_gather(part, bounds)
        return (time.perf_counter() - began) / times

    for _ in range(ROUNDS):
        each = {"message": seconds([16] * 100, 1, 3) / 100}
        for name, T in PASSES.items():
            each[name] = seconds(gathers(MODELS["8B"], T), T, 10 if T == 1 else 1)
        best = {name: min(each[name], best.get(name, each[name])) for name in each}
    if ranks.rank == 0:
        print(json.dumps(best))


def measure() -> list[str]:
    """Returns by rate and pass what was measured, and what the simulation says: rows of a
    table.

    Its latency is that which was measured, since this machine adds its own. Two
    processors send, receive and join all bytes here, while the wire carries others: the
    longer of the two counts.
    """
    best: dict[int, dict[str, float]] = {}
    with machines():
        for _, gigabits in itertools.product(range(TURNS), (0, *RATES)):
            limit(gigabits)
            found = two_ranks()
            before = best.get(gigabits, {})
            best[gigabits] = {
                name: min(found[name], before.get(name, 1e9)) for name in found
            }
    rows = [HEADING]
    for gigabits, (name, T) in itertools.product(RATES, PASSES.items()):
        sizes = gathers(MODELS["8B"], T)
        found = best[gigabits]
        moved = max(best[0][name] - len(sizes) * best[0]["message"], 0.0)
        wire = wire_seconds(MODELS["8B"], 2, gigabits, T, alpha=0.0)
        latency = len(sizes) * found["message"]
        simulated = latency + max(wire, moved)
        times = latency, wire, moved, simulated, found[name]
        cells = " | ".join(f"{each * 1e3:.1f} ms" for each in times)
        rows.append(
            f"| {name}, {gigabits} Gb/s | {cells} | {found[name] / simulated:.2f} |"
        )
    return rows


def main() -> None:
    try:
        found = measure()
    except NotAllowedError as error:
        sys.exit(
            "skipped: two network namespaces with a limited rate are not allowed: "
            f"{error}"
        )
    print("\n".join(found))


if __name__ == "__main__":
    rank() if "--rank" in sys.argv else main()
