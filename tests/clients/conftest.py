"""The event loop and the rigs of the engines' tests, for the clients' as well."""

from tests.fronts.conftest import bare, proxied, pytest_pyfunc_call, quiet_log, rig, runner

__all__ = ["bare", "proxied", "pytest_pyfunc_call", "quiet_log", "rig", "runner"]
