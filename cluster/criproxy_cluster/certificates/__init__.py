"""The webhook's own certificate authority, where cert-manager has none for it.

    authority   which keys and certificates there are to be, and when they are made anew
    keeper      does it: two Secrets, and whom the API server trusts

It runs as a Job of its own, with an account of its own: neither the webhook nor the controller may read the authority's
key, or say which webhook the API server asks.
"""
