"""The command-line interface: arguments, one-shot prompts, the chat and reports."""

import contextlib
import io
import os
import sys
import time
from collections.abc import Iterator

# Rank 0 reports errors that occur on all ranks. The other ranks wait this many seconds
# for mpirun to end them.
SECONDS_FOR_RANK_0 = 2.0


def mpi_place() -> tuple[int, int]:
    """Return this process's rank and the number of ranks under Open MPI or MPICH."""
    for rank, size in (
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("PMI_RANK", "PMI_SIZE"),
    ):
        if os.environ.get(rank, "").isdecimal() and os.environ.get(size, "").isdecimal():
            return int(os.environ[rank]), int(os.environ[size])
    return 0, 1


def attach_rank() -> None:
    """Connect rank 0 to mpirun's terminal and silence the other ranks.

    mpirun itself forwards output only in whole lines.
    """
    rank, size = mpi_place()
    if rank:
        # The file stays open until the process ends.
        sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    for stream in (1, 2) if rank == 0 and size > 1 else ():
        if mpirun_is_at_terminal(stream):
            os.dup(stream)  # without this copy, mpirun would also close standard input
            place = os.open(
                f"/proc/{os.getppid()}/fd/{stream}", os.O_WRONLY | os.O_NOCTTY
            )
            os.dup2(place, stream)


@contextlib.contextmanager
def usage_errors_of_rank() -> Iterator[None]:
    """Report an invalid argument on this rank unless rank 0 reports it as well.

    All ranks usually have the same arguments. If a rank other than rank 0 exited without
    telling rank 0, rank 0 would wait for it forever.
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
    """Return whether stream 0, 1 or 2 of mpirun, the parent process, is a terminal."""
    if mpi_place()[1] == 1:
        return False
    try:
        name = os.readlink(f"/proc/{os.getppid()}/fd/{stream}")
    except OSError:
        return False
    return name.startswith(("/dev/pts/", "/dev/tty", "/dev/console"))
