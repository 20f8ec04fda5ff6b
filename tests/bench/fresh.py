"""What is measured of a fresh process: the time until it is ready, and its own memory at most."""

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

_STATUS = "/proc/{}/status"
_POLL = 0.002


def seconds_to_ready(directory: Path) -> float:
    """Time the command line from the start of its process to the line that says what is loaded."""
    command = [sys.executable, "-m", "src.main", "-m", str(directory), "--completion"]
    start = time.perf_counter()
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stderr is not None
    process.stdin.write(b"x")
    process.stdin.close()
    line = process.stderr.readline()
    seconds = time.perf_counter() - start
    process.kill()
    process.wait()
    process.stderr.close()
    if b"; context " not in line:
        raise SystemExit(f"the command line did not get ready: {line.decode()!r}")
    return seconds


def peak_memory(directory: Path, threads: int, positions: int, prompt: int) -> dict[str, int]:
    """Run a prompt at the end of a long context, and a few steps, in a new process.

    Returns the most bytes of anonymous memory seen, and the bytes of the cache.
    """
    arguments = [str(directory), str(threads), str(positions), str(prompt)]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.bench.fresh", *arguments], stdout=subprocess.PIPE
    )
    peak = [0]
    watcher = threading.Thread(target=_watch, args=(process, peak))
    watcher.start()
    output, _ = process.communicate()
    watcher.join()
    if process.returncode:
        raise SystemExit(f"the run for memory ended with {process.returncode}")
    return {"anonymous": peak[0], **json.loads(output)}


def _watch(process: "subprocess.Popen[bytes]", peak: list[int]) -> None:
    while process.poll() is None:
        peak[0] = max(peak[0], anonymous_bytes(process.pid))
        time.sleep(_POLL)


def anonymous_bytes(pid: int) -> int:
    """Return the resident bytes of a process that belong to no file; 0 when it has ended."""
    try:
        text = Path(_STATUS.format(pid)).read_text()
    except OSError:
        return 0
    lines = [line.split() for line in text.splitlines() if line.startswith("RssAnon:")]
    return int(lines[0][1]) * 1024 if lines else 0


def _use_memory(directory: str, threads: str, positions: str, prompt: str) -> dict[str, Any]:
    from .engines import Ours, Setup

    ours = Ours(Setup(Path(directory), int(threads), int(positions)))
    count = int(prompt)
    ids = [token % ours.model.args.vocab_size for token in range(count)]
    ours.run(ids)
    start = int(positions) - count - 8
    ours.seek(start)
    ours.run(ids)
    for token in range(4):
        ours.run([token])
    return {"cache": ours.context.nbytes}


if __name__ == "__main__":
    print(json.dumps(_use_memory(*sys.argv[1:])))
