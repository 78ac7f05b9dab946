"""The webhook: offline pods are made to ask for what nodes lend. Each of its replicas serves it.

How it works
------------
    the API server ──▶ front ──▶ app ──▶ admission ──▶ conversion ──▶ jsonpatch ──▶ the answer

What is decided is pure: `conversion` (what becomes of a pod), `admission` (the answer), `jsonpatch`. `front` is HTTP
and its limits, `app` what is served, and `certificates` takes up those that it is served with. It asks nobody, and has
no credential: what the API server sends is all that it knows.
"""
