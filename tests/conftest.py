"""What holds for every test, in a shell of any kind and on a machine however busy."""

import signal

from hypothesis import HealthCheck, settings

# A shell without job control lets what it runs in the background ignore Ctrl-C, which tests press.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples in every run, which may take their time.
slow = [HealthCheck.too_slow]
settings.register_profile("steady", deadline=None, derandomize=True, suppress_health_check=slow)
settings.load_profile("steady")
