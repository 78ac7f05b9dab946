"""Properties are not judged by the time that they take: the machine may be busy with something else."""

import gc

from hypothesis import HealthCheck, settings

EXAMPLES = 50 if settings.default is not None and settings.default.derandomize else 100
"""Where hypothesis takes the same ones in each run, as in CI, more of them find no more."""

settings.register_profile("patient", deadline=None, max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


def pytest_collection_finish() -> None:
    """Thousands of tests stay until the end: Python looks through them for garbage no more."""
    gc.collect()
    gc.freeze()
