"""Unary gRPC calls of our own, over a unix socket: a pure core, and the connection that runs it.

Not grpcio: it costs 10 MB and 30 ms, keeps what a large answer needed, and would serve a few calls a minute.
"""
