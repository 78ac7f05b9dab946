"""The node's side of Kubernetes: what it can lend is published, pods are evicted, and the node's policy is followed.

How it works
------------
criproxy speaks to the API server as kubelet does, by kubelet's own credential: a node may patch its own Node and its
status, watch its own Node, list the pods that are bound to it, evict them, and create and patch events. Nothing else is
needed, so there is no account and no role of ours.

    credential ──▶ connection ──▶ client ──┬──▶ node_watch ──▶ whoever wants to see the node: publisher, policy
    (files)        (TLS, HTTP/1.1)         ├──▶ publisher     status.capacity and allocatable, by extended_resources
                                           ├──▶ evictions     pods/eviction, the labels of what was evicted
                                           ├──▶ events        of evictions, and of the ladder
                                           └──▶ policy        the annotation, and the report about it

What is decided is in pure modules: `http1` (bytes in, a response out), `retry` (whether and when to try again),
`criproxy.vocabulary.watching` (an unbroken view of an object), `extended_resources` (which numbers, and when),
`objects` (what is read of and written to the API).

The rest of criproxy never waits for any of this. Each part is a task of its own that only leaves its newest result;
files and names are read in a thread that nobody waits for; what comes is bounded in size and in time. Without an API
server all goes on as it is: the last policy holds, the published numbers stay, and the parts try again with growing
and random pauses, so that 10,000 nodes do not return at the same moment.

A connection serves one request, or one watch, and is closed. So a rotated certificate, another address of the server
or a dead connection concerns the next request only. At one patch each five minutes a node, it costs the API server a
handshake for each.

This room is imported only where it is switched on, but for `http1`, by which online services are asked, too.
"""
