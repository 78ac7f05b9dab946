"""`./demo --spark`: a real Spark job in what an online Deployment leaves, and the same job on nodes of its own.

The cluster is that of `./demo --cluster`: two nodes on one machine, the second cordoned until it is needed.

watch    looks twice a second at the executors, and tells what has changed
play     the job offline, beside a Deployment that bursts, so that executors are evicted; then alone, as any pods are
report   what came of it
"""
