"""The command line: arguments, one-shot prompts, the chat, reports on a model."""

import contextlib
import io
import os
import sys
import time
from collections.abc import Iterator

# Rank 0 reports an error that all ranks have, and mpirun ends the other ranks within this
# time.
SECONDS_FOR_RANK_0 = 2.0


def mpi_place() -> tuple[int, int]:
    """Return the rank of this process and the number of ranks, by Open MPI or MPICH."""
    for rank, size in (
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("PMI_RANK", "PMI_SIZE"),
    ):
        if os.environ.get(rank, "").isdecimal() and os.environ.get(size, "").isdecimal():
            return int(os.environ[rank]), int(os.environ[size])
    return 0, 1


def attach_rank() -> None:
    """Connect rank 0 to the terminal of mpirun and silence the other ranks.

    mpirun itself passes on whole lines only.
    """
    rank, size = mpi_place()
    if rank:
        # Open until the process ends.
        sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    for stream in (1, 2) if rank == 0 and size > 1 else ():
        if mpirun_is_at_terminal(stream):
            os.dup(stream)  # without this copy mpirun would also close standard input
            place = os.open(
                f"/proc/{os.getppid()}/fd/{stream}", os.O_WRONLY | os.O_NOCTTY
            )
            os.dup2(place, stream)


@contextlib.contextmanager
def usage_errors_of_rank() -> Iterator[None]:
    """Report a wrong argument of another rank unless rank 0 reports it as well.

    The ranks usually have the same arguments. Without a report, rank 0 would wait for a
    rank that has exit_request.
    """
    rank, _ = mpi_place()
    if rank == 0:
        yield
        return
    message = io.StringIO()
    try:
        with contextlib.redirect_stderr(message):
            yield
    except SystemExit as exit_request:
        if exit_request.code:
            time.sleep(SECONDS_FOR_RANK_0)
            text = message.getvalue().removeprefix("error: ")
            os.write(2, f"error: rank {rank}: {text}".encode())
        raise


def mpirun_is_at_terminal(stream: int) -> bool:
    """Return whether stream 0, 1 or 2 of mpirun, this process's parent, is a terminal."""
    if mpi_place()[1] == 1:
        return False
    try:
        name = os.readlink(f"/proc/{os.getppid()}/fd/{stream}")
    except OSError:
        return False
    return name.startswith(("/dev/pts/", "/dev/tty", "/dev/console"))
