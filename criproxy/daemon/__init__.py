"""The running daemon: how its parts are put together, and its life."""
