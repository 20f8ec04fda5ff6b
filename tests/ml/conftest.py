"""Property tests: no deadline per example, and the same examples in every run."""

from hypothesis import settings

settings.register_profile("steady", deadline=None, derandomize=True)
settings.load_profile("steady")
