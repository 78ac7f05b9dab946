"""What the service manager hears of the process that it takes for the main one."""

import asyncio
from collections.abc import Callable, Mapping

from criproxy.daemon.tasks import Tasks
from criproxy.observe.notify import Notifier, watchdog_interval_s


class Duty:
    """Being that process. `unhealthy` says why the watchdog is not to be fed, None: it is. `pid` is our own."""

    def __init__(
        self,
        notifier: Notifier,
        unhealthy: Callable[[], str | None],
        tasks: Tasks,
        environ: Mapping[str, str],
        pid: int,
    ) -> None:
        self._notifier = notifier
        self._unhealthy = unhealthy
        self._tasks = tasks
        self._interval_s = watchdog_interval_s(environ, pid)
        self._watchdog: asyncio.Task[None] | None = None

    def begin(self, status: str) -> None:
        """The service manager listens to us now; may be called again."""
        if self._watchdog is None:
            self._notifier.ready(status)
            self._watchdog = self._tasks.keep(self._feed_watchdog())

    def end(self) -> None:
        if self._watchdog is not None:
            self._watchdog.cancel()

    async def _feed_watchdog(self) -> None:
        """Systemd hears of us while the loop goes on."""
        if self._interval_s is None:
            return
        while True:
            if self._unhealthy() is None:
                self._notifier.watchdog()
            await asyncio.sleep(self._interval_s)
