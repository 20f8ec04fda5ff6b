"""Property tests: the same examples in every run, and no deadline on a busy machine."""

from hypothesis import HealthCheck, settings

slow = [HealthCheck.too_slow]
settings.register_profile("steady", deadline=None, derandomize=True, suppress_health_check=slow)
settings.load_profile("steady")
