"""The container image of criproxy: Debian packages, the locked wheels and our code; no registry, no container.

One image is for the nodes' side and the cluster's: `criproxy-cluster` is its entry point, `criproxy` and
`criproxy-install` lie beside it.

How it works
------------
Two layers, each a directory that becomes a tar: below, what apt resolves of `contents.PACKAGES`, unpacked and not
installed; above, for each of `contents.PROGRAMS` its code and its locked wheels, in a directory of its own. In both,
Python's code is compiled by the very Python that is in the image, as a container has a file system that it can't write
to.

The same packages, lock and code give the same digest, whoever builds and whenever: entries are in their names' order,
belong to root, have the time 0, and one of two modes; layers are not compressed, as zlib may differ; bytecode is marked
as never to be compared with its source.
"""
