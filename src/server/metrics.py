"""What `/metrics` tells Prometheus."""

from collections.abc import Iterator
from typing import get_type_hints

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ..inference import BatchEngine, Counters

_KINDS = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily}
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class _EngineCounters(Collector):
    def __init__(self, engine: BatchEngine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        """Yield the engine's counters as they are now."""
        counters = self._engine.counters()
        for name, hint in get_type_hints(Counters, include_extras=True).items():
            kind, text = hint.__metadata__
            yield _KINDS[kind](f"llama_bolts_{name}", text, getattr(counters, name))


class Metrics:
    """The counters of one server.

    Args:
        engine: Has counters too.
    """

    def __init__(self, engine: BatchEngine) -> None:
        self._registry = registry = CollectorRegistry()
        registry.register(_EngineCounters(engine))
        self._responses = Counter(
            "llama_bolts_responses", "responses", ("path", "status"), registry=registry
        )
        self._first = Histogram(
            "llama_bolts_time_to_first_token_seconds", "from a request to its first token",
            buckets=_SECONDS, registry=registry,
        )  # fmt: skip
        self._between = Histogram(
            "llama_bolts_time_between_tokens_seconds", "from one token of a request to the next",
            buckets=_SECONDS, registry=registry,
        )  # fmt: skip

    def note_response(self, path: str, status: int) -> None:
        """Count a response of a known path."""
        self._responses.labels(path, status).inc()

    def note_step(self, seconds: float, is_first: bool) -> None:
        """Take the time since the step before, or since the request for the first one."""
        (self._first if is_first else self._between).observe(seconds)

    def text(self) -> bytes:
        """Return all of it as Prometheus reads it."""
        return generate_latest(self._registry)
