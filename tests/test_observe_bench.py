"""The clients of `python -m benchmarks.observe`."""

import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

from benchmarks.observe import Asking


def test_answers_a_second_are_all_answers_over_all_the_time_that_they_took() -> None:
    answered: list[float] = []

    class Metrics(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"x")
            answered.append(time.monotonic())
            time.sleep(0.05)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Metrics)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    began_s = time.monotonic()
    with Asking(2, f"127.0.0.1:{server.server_port}") as asking:
        while len(answered) < 20:
            time.sleep(0.01)
        time.sleep(0.5)
    server.shutdown()
    server.server_close()
    until_s = answered[-1]
    assert 0.8 < asking.answers_per_s * (until_s - began_s) / len(answered) < 1.1
