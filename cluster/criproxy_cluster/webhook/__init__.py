"""The webhook: offline pods are made to ask for what nodes lend. Each replica serves it.

How it works
------------
    the API server ──▶ app ──▶ admission ──▶ conversion ──▶ jsonpatch ──▶ the answer

What is decided is pure: `conversion` (what becomes of a pod), `admission` (the answer), `jsonpatch`, `authority` (which
certificate is to be made next; it makes them, too). `app` serves over HTTP, and `certificates` keeps those that it
serves with; where they are our own, the leader writes them.
"""
