"""What `/metrics` tells Prometheus."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ..inference import BatchEngine

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
# Of the engine's counters: what is so now, and what only grows.
_NOW = {
    "running": "requests that read their prompt or draw tokens",
    "waiting": "requests in the queue",
    "blocks": "blocks of the cache, of 256 positions each",
    "blocks_used": "blocks that running requests use",
    "blocks_cached": "blocks that keep a prefix which no running request uses",
}
_GROWING = {
    "prompt_tokens": "tokens of prompts",
    "cached_tokens": "tokens of prompts that were found in the cache",
    "new_tokens": "tokens that were drawn",
    "passes": "passes over the weights",
    "finished": "answers that came to their end",
    "cancelled": "answers whose client went away",
    "failed": "answers that ended with an error",
}


class _EngineCounters(Collector):
    def __init__(self, engine: BatchEngine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        """Yield the engine's counters as they are now."""
        counters = self._engine.counters()
        for name, text in _NOW.items():
            yield GaugeMetricFamily(f"llama_bolts_{name}", text, getattr(counters, name))
        for name, text in _GROWING.items():
            yield CounterMetricFamily(f"llama_bolts_{name}", text, getattr(counters, name))


class Metrics:
    """The counters of one server.

    Args:
        engine: Has counters too.
    """

    def __init__(self, engine: BatchEngine) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_EngineCounters(engine))
        self._responses = Counter(
            "llama_bolts_responses", "responses", ("path", "status"), registry=self._registry
        )
        self._first, self._between = (
            Histogram(f"llama_bolts_{name}", text, buckets=_SECONDS, registry=self._registry)
            for name, text in (
                ("time_to_first_token_seconds", "from a request to its first token"),
                ("time_between_tokens_seconds", "from one token of a request to the next"),
            )
        )

    def note_response(self, path: str, status: int) -> None:
        """Count a response of a known path."""
        self._responses.labels(path, status).inc()

    def note_step(self, seconds: float, is_first: bool) -> None:
        """Take the time since the step before, or since the request for the first one."""
        (self._first if is_first else self._between).observe(seconds)

    def text(self) -> bytes:
        """Return all of it as Prometheus reads it."""
        return generate_latest(self._registry)
