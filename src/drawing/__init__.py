"""Diagrams of a traced run: an SVG for each of the 21 stages, and one of the whole model."""

from .diagrams import draw_all
from .run import Beside, Recorder, TracedRun

__all__ = ["Beside", "Recorder", "TracedRun", "draw_all"]
