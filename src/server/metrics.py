"""What `/metrics` tells Prometheus."""

from collections.abc import Iterator
from typing import get_type_hints

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ..inference import BatchEngine, Counters

_KINDS = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily}
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics(CollectorRegistry):
    """The counters of one server, with those of its engine.

    Attributes:
        responses: Of each path and status.
        first: Seconds from a request to its first token.
        between: Seconds from one token of a request to the next.
    """

    def __init__(self, engine: BatchEngine) -> None:
        super().__init__()
        self.register(_EngineCounters(engine))
        self.responses = Counter(
            "llama_bolts_responses", "responses", ("path", "status"), registry=self
        )
        self.first, self.between = (
            Histogram(f"llama_bolts_time_{name}_seconds", text, buckets=_SECONDS, registry=self)
            for name, text in (
                ("to_first_token", "from a request to its first token"),
                ("between_tokens", "from one token of a request to the next"),
            )
        )


class _EngineCounters(Collector):
    def __init__(self, engine: BatchEngine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        """Yield the engine's counters as they are now."""
        counters = self._engine.counters()
        for name, hint in get_type_hints(Counters, include_extras=True).items():
            kind, text = hint.__metadata__
            yield _KINDS[kind](f"llama_bolts_{name}", text, getattr(counters, name))
