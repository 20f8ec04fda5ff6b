"""The ranks of a run under mpirun. Rank 0 controls the others, and all end together.

In each rank, a thread sends a heartbeat to the next rank every half second. It uses a
separate communicator, so heartbeats continue during passes that take minutes. A killed
rank is detected by mpirun.
"""

import contextlib
import dataclasses
import os
import select
import stat
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from .. import __version__, ml
from ..checkpoint import CheckpointError
from ..checkpoint.adapters import adapter_files
from ..checkpoint.mapped_file import file_fingerprint
from ..installation import install_hint
from ..model import (
    CacheMemory,
    LoadedAdapter,
    Model,
    Source,
    find_source,
    forecast_memory,
    load_adapter,
    load_model,
)
from ..model.ranks import Ranks, own_forecast
from ..untrusted import escape_line
from . import SECONDS_FOR_RANK_0, mpi_place, mpirun_is_at_terminal
from .arguments import DEFAULT_CONTEXT_LENGTH, Options
from .console import Console, UsageError
from .loading import RankedOptions, load_arguments

T = TypeVar("T")
DescribeError = Callable[[Exception], tuple[int, str]]

_BEAT_SECONDS = 0.5
_LOST_SECONDS = 5.0  # maximum time without a heartbeat while this rank is running


def run_rank(
    options: Options,
    console: Console,
    talk: Callable[[Options, Console], int],
    describe_error: DescribeError,
) -> int:
    """Run `talk` on rank 0 and its commands on the other ranks; return the exit code."""
    rank = mpi_place()[0]
    if rank == 0 and "OMPI_COMM_WORLD_RANK" in os.environ:
        _pass_on_input()
    try:
        try:
            from mpi4py import MPI
        except (ImportError, RuntimeError) as error:
            text = (
                f"rank {rank}: mpi4py: expected it installed, got {error}: "
                f"{install_hint('mpi')}"
            )
            if rank:  # rank 0 usually has the same installation and reports the error
                time.sleep(SECONDS_FOR_RANK_0)
                _write_error(text)
                return 2
            raise UsageError(text) from None
        world = World(MPI, options, describe_error)
    except UsageError as error:
        console.error(str(error))
        return 0 if rank else 2  # a nonzero code here would end rank 0 before its message
    if rank:
        return world.follow()
    code = 130
    try:
        code = talk(
            RankedOptions(
                **vars(world.options),
                load_on_ranks=world.load,
                load_adapter_on_ranks=world.load_adapter,
            ),
            console,
        )
    finally:
        world.end(code)
    return code


class World:
    """All ranks of a run, as seen by one rank."""

    def __init__(self, mpi: Any, options: Options, describe_error: DescribeError) -> None:
        """Compare the ranks' versions, set the thread count and start the heartbeat.

        The arguments are the same as for `run_rank`.
        """
        self._mpi = mpi
        self._describe_error = describe_error
        self.ranks = Ranks(mpi.COMM_WORLD.Dup(), self._fail)
        self._line = mpi.COMM_WORLD.Dup()
        self._shared_error: Exception | None = None
        host = mpi.Get_processor_name()
        processors = frozenset(os.sched_getaffinity(0))
        places = self.ranks.comm.allgather((host, processors))
        self._hosts = [other_host for other_host, _ in places]
        self._ranks_on_host = self._hosts.count(host)
        self._compare("version", self.ranks.comm.allgather(__version__), UsageError)
        for rank, level in enumerate(self.ranks.comm.allgather(mpi.Query_thread())):
            if level < mpi.THREAD_MULTIPLE:
                text = (
                    f"mpi: expected MPI_THREAD_MULTIPLE ({mpi.THREAD_MULTIPLE}), got "
                    f"{level}"
                )
                raise UsageError(f"{self._name(rank)}: {text}")
        ranks_here = places.count((host, processors))
        threads = options.threads or max(ml.get_num_threads() // ranks_here, 1)
        ml.set_num_threads(threads)
        self.options = dataclasses.replace(options, threads=threads)
        self._over = threading.Event()
        self._watch = threading.Thread(target=self._watch_before, daemon=True)
        self._watch.start()

    def _compare(
        self, subject: str, values: Sequence[object], error: type[Exception]
    ) -> None:
        for rank, value in enumerate(values):
            if value != values[0]:
                text = f"{subject}: expected {values[0]} as on rank 0, got {value}"
                self._shared_error = error(f"{self._name(rank)}: {text}")
                raise self._shared_error

    def _name(self, rank: int) -> str:
        return f"rank {rank} on {self._hosts[rank]}"

    def load(
        self, source: Source | None, positions: int | None, console: Console | None
    ) -> tuple[Model, int]:
        """Load a model on all ranks; an error on any rank is raised on every rank.

        If an unexpected error occurs only on this rank, all ranks are terminated, because
        the other ranks would wait for this one.
        """
        try:
            return self._load(source, positions, console)
        except BaseException as error:
            if error is not self._shared_error:
                self._fail(error)
            raise

    def load_adapter(self, model: Model, path: Path) -> LoadedAdapter:
        """Load an adapter on all ranks; an error on any rank is raised on every rank.

        Rank 0 calls this, and the other ranks follow.
        """
        if self.ranks.rank == 0:
            self.ranks.command("adapter", path)
        network: Any = model.transformer
        before = len(network.adapters)
        try:
            fingerprints = self._together(
                lambda: [file_fingerprint(each) for each in adapter_files(path)]
            )
            self._compare(
                "adapter files",
                self.ranks.comm.allgather(str(fingerprints)),
                CheckpointError,
            )
            return self._together(lambda: load_adapter(model, path))
        except BaseException as error:
            del network.adapters[before:]
            if error is not self._shared_error:
                self._fail(error)
            raise

    def _load(
        self, source: Source | None, positions: int | None, console: Console | None
    ) -> tuple[Model, int]:
        options = self.options
        ranks = self.ranks
        load_options = load_arguments(options)
        if source is not None:
            ranks.command("load", positions)
        own_source = self._together(lambda: source or find_source(options.model))
        paths = self._together(lambda: own_source.weight_files)
        fingerprints = self._together(
            lambda: [(path.name, file_fingerprint(path)) for path in paths]
        )
        for subject, value in (
            ("sizes and settings", (own_source.args, load_options)),
            ("weight files", fingerprints),
        ):
            self._compare(subject, ranks.comm.allgather(str(value)), CheckpointError)
        sizes = (
            own_source,
            positions,
            DEFAULT_CONTEXT_LENGTH,
            options.quantize,
            options.dequantize,
        )
        whole = self._together(lambda: forecast_memory(*sizes))
        is_merged = own_source.is_merged and options.quantize is None
        shards = len(paths) if is_merged else 1
        forecast = own_forecast(whole, shards, ranks.size, self._ranks_on_host)
        self._together(forecast.check)
        if console is not None and forecast.warning is not None:
            console.warn(forecast.warning)
        return self._together(
            lambda: load_model(own_source, ranks=ranks, **load_options)
        ), forecast.positions

    def _together(self, work: Callable[[], T]) -> T:
        """Call `work` on all ranks; if it fails on one of them, raise an error on all."""
        failure = None
        own = None
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - rank 0 reports it
            failure = (type(error), self._describe_error(error)[1])
            own = error
        failures = self.ranks.comm.allgather(failure)
        if own is not None:
            self._shared_error = own
            raise own
        for rank, reported in enumerate(failures):
            if reported is not None:
                self._shared_error = reported[0](f"{self._name(rank)}: {reported[1]}")
                raise self._shared_error
        return result

    def follow(self) -> int:
        """Run rank 0's commands until it ends; return its exit code."""
        memories: dict[int, CacheMemory] = {}
        model: Any = None
        while True:
            try:
                word, *rest = self.ranks.next_command()
                if word == "forward":
                    model.transformer.follow(memories, *rest)
                elif word == "load":
                    with contextlib.suppress(
                        Exception
                    ):  # rank 0 reports the shared error and ends
                        model = self.load(None, rest[0], None)[0]
                elif word == "adapter":
                    with contextlib.suppress(Exception):  # rank 0 reports it
                        self.load_adapter(model, rest[0])
                else:
                    self.end()
                    return int(rest[0])
            # No rank can continue without this rank.
            except Exception as error:  # noqa: BLE001
                self._fail(error)

    def end(self, *code: int) -> None:
        """Stop the heartbeat; with an exit code, also end the other ranks."""
        if code:
            self.ranks.command("end", *code)
        self._over.set()
        self._watch.join()

    def _fail(self, error: BaseException) -> NoReturn:
        code, text = (
            self._describe_error(error)
            if isinstance(error, Exception)
            else (130, repr(error))
        )
        self._abort(f"{self._name(self.ranks.rank)}: {text}", code)

    def _abort(self, text: str, code: int) -> NoReturn:
        _write_error(text)  # print the error before all ranks are aborted
        self._mpi.COMM_WORLD.Abort(code)
        os._exit(code)

    def _watch_before(self) -> None:
        """Send heartbeats to the next rank; end all ranks if the previous one stops."""
        line = self._line
        beat = bytearray(1)
        before, after = ((self.ranks.rank + step) % self.ranks.size for step in (-1, 1))
        heard = last = time.monotonic()
        sent: list[Any] = []
        while not self._over.wait(_BEAT_SECONDS):
            sent = [request for request in sent if not request.Test()]
            sent.append(line.Isend([beat, "B"], after))
            now = time.monotonic()
            # Do not count the time in which this rank was not listening.
            heard += now - last - _BEAT_SECONDS
            last = now
            while line.Iprobe(before):
                line.Recv([bytearray(1), "B"], before)
                heard = now
            if (silence := now - heard) > _LOST_SECONDS:
                got = f"none for {silence:.0f} s (rank lost)"
                self._abort(f"{self._name(before)}: expected a heartbeat, got {got}", 1)


def _pass_on_input() -> None:
    """End standard input when mpirun's input ends, which Open MPI 5 does not report."""
    parent = Path(f"/proc/{os.getppid()}")
    try:
        kind = os.stat(parent / "fd/0")
        if not stat.S_ISFIFO(kind.st_mode) and not mpirun_is_at_terminal(0):
            os.dup2(os.open(parent / "fd/0", os.O_RDONLY), 0)
            return
    except OSError:
        return
    source = os.dup(0)
    (reader, writer) = os.pipe()
    os.dup2(reader, 0)

    def pass_on() -> None:
        # Consecutive attempts are counted, since mpirun may not have started to read.
        silent = 0
        most = 10
        while silent < most:
            if select.select([source], [], [], _BEAT_SECONDS)[0]:
                data = os.read(source, 1 << 16)
                silent = 0
                while data:
                    data = data[os.write(writer, data) :]
            elif any(  # mpirun keeps its input in an epoll set until the input ends
                "tfd:        0 " in file.read_text()
                for file in (parent / "fdinfo").iterdir()
            ):
                silent = 0
                most = 2
            else:
                silent += 1
        os.close(writer)

    threading.Thread(target=pass_on, daemon=True).start()


def _write_error(text: str) -> None:
    """Write the last line of a rank whose other output is hidden."""
    os.write(2, f"error: {escape_line(text)}\n".encode())
