"""What HTTP costs: tokens per second of a `BatchEngine`, in Python and behind `--serve`.

`python -m tests.bench.bench_http` starts a server beside itself and lets both answer the
same requests in turn, so that one of them rests while the other works. The texts have to
be equal. What counts is the time from the first token of an answer to its last one;
ratios are those of a round. What the event loop of the server takes of a processor hardly
depends on what else runs. The last line is JSON.
"""

import http.client
import json
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from src import ml
from src.inference import BatchEngine, SamplingArgs
from src.model import load_model
from tests.server.running import JSON, Running, running

from .bench_batch import prompt
from .processes import Rounds
from .shapes import CHECKPOINT, find_checkpoint, read_options

POSITIONS = 1024
PROMPT = 32
# What came of an answer: its text, and its tokens per second.
Answer = tuple[str, float]


def main() -> None:
    options = read_options(__doc__, **CHECKPOINT, counts=[1, 8], rounds=5, tokens=32)
    directory = find_checkpoint(options.shape, options.layers, options.directory)
    model = load_model(directory)
    found: dict[str, Any] = {"isa": ml.build_info()["isa"], "model": str(directory)}
    with (
        tempfile.TemporaryDirectory() as place,
        running(Path(place), "-m", str(directory), "-c", str(POSITIONS)) as server,
        BatchEngine(model, sequence_length=POSITIONS) as engine,
    ):
        for count in options.counts:
            rounds = Rounds({"Python": [], "HTTP": []})
            before = loop_seconds(server)
            for number in range(1 + options.rounds):  # the first one warms up
                seeds = range(100 * number, 100 * number + count)
                prompts = [prompt(model, seed, PROMPT) for seed in seeds]
                arguments = prompts, seeds, [options.tokens] * count
                with ThreadPoolExecutor(count) as pool:
                    plain = list(pool.map(in_python, [engine] * count, *arguments))
                    served = list(pool.map(over_http, [server.port] * count, *arguments))
                if [text for text, _ in plain] != [text for text, _ in served]:
                    raise SystemExit("the texts differ")
                for name, answers in (("Python", plain), ("HTTP", served)):
                    rounds.rates[name] += [sum(rate for _, rate in answers)] * bool(
                        number
                    )
            ratio, least, greatest = rounds.ratio("Python", "HTTP")
            found |= {f"{name} {count}": rounds.rate(name) for name in rounds.rates}
            found[f"Python over HTTP {count}"] = ratio
            tokens = (1 + options.rounds) * count * options.tokens
            found[f"loop {count}"] = (loop_seconds(server) - before) / tokens
            print(
                f"{count}: {rounds.rate('Python'):.2f} tokens/s in Python, "
                f"{rounds.rate('HTTP'):.2f} over HTTP; ratio {ratio:.4f}, from "
                f"{least:.4f} to {greatest:.4f}; {found[f'loop {count}'] * 1e3:.2f} ms "
                "of the event loop for a token",
                flush=True,
            )
    print(json.dumps(found))


def loop_seconds(server: Running) -> float:
    """Return what the main thread of the server took of a processor so far."""
    process = server.process.pid
    return (
        int(Path(f"/proc/{process}/task/{process}/schedstat").read_text().split()[0])
        / 1e9
    )


def in_python(engine: BatchEngine, ids: list[int], seed: int, tokens: int) -> Answer:
    request = engine.submit(ids, tokens, SamplingArgs(temperature=1.0, seed=seed))
    first = next(request)
    started = time.perf_counter()
    texts = [first.text, *(step.text for step in request)]
    return "".join(texts), (len(texts) - 1) / (time.perf_counter() - started)


def over_http(port: int, ids: list[int], seed: int, tokens: int) -> Answer:
    body = {
        "prompt": ids,
        "max_tokens": tokens,
        "temperature": 1.0,
        "seed": seed,
        "stream": True,
    }
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("POST", "/v1/completions", json.dumps(body), JSON)
    response = connection.getresponse()
    first = response.readline()
    rest = list[bytes]()
    started = time.perf_counter()
    while (line := response.readline()) != b"data: [DONE]\n":
        rest += [line] * (line != b"\n")
    seconds = time.perf_counter() - started
    connection.close()
    events = [json.loads(line.removeprefix(b"data: ")) for line in (first, *rest)]
    return "".join(event["choices"][0]["text"] for event in events), len(rest) / seconds


if __name__ == "__main__":
    main()
