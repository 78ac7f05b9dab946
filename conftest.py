"""Properties are not judged by the time that they take: the machine may be busy with something else."""

import gc

from hypothesis import HealthCheck, settings

settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


def pytest_collection_finish() -> None:
    """Thousands of tests stay until the end: Python looks through them for garbage no more."""
    gc.collect()
    gc.freeze()
