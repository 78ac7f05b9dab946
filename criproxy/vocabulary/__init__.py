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

| module | what it says |
|---|---|
| `names` | labels, annotations, conditions and taints |
| `presets` | other systems' marks of offline pods, and what they call what is lent: a new system is a row there |
| `published` | the annotation with the names of what a node lends |
| `policy` | the ColocationPolicy, and the annotations by which a node gets it and answers |
| `quantities` | amounts as Kubernetes writes them |
| `times` | times as Kubernetes writes them |
| `watching` | lists and watches as Kubernetes answers them, and what to ask next |
"""
