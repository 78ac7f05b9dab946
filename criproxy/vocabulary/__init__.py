"""The words that nodes and cluster share: names, presets, quantities, times, and what a policy looks like.

How it works
------------
The node's distribution (criproxy) and the cluster's (criproxy_cluster) are installed apart, in whatever versions, and
neither needs the other. What they write into Kubernetes' objects for each other is said here, once. The folder is a
part of both: it is `criproxy.vocabulary` and, by a link in the checkout, `criproxy_cluster.vocabulary`. A build follows
the link, so each wheel, package or image has the folder inside its own package, and two that are installed side by side
have no file in common.

So the modules import each other by relative names, and nothing else but the standard library and msgspec, which both
distributions need anyway. A change has to suit nodes and clusters of other versions: a name is never given another
meaning.
"""
