"""`./demo --cluster`: Kubernetes itself lends what online leaves, on a control plane and two nodes of its own.

All is real: etcd, API server, scheduler and controller manager; two kubelets, each before a containerd of its own, with
criproxy between; the cluster's side with the manifests' rights. The nodes are one machine, so each counts what runs on
the other as its own online usage, and so with whatever else runs on this machine.

objects  what is asked of Kubernetes, and how large; pure
stage    brings the cluster up: the second node is cordoned until it is needed
probe    asks the online Deployment at a steady pace, and notes how long each answer took
watch    looks twice a second at pods, nodes and CPU, and tells what has changed
play     the acts: online alone; a Job beside it; a burst, under which one of its pods is evicted; its next place
report   what came of it: figures and the picture
"""
