"""What offline work gains, and what online pays for it, so that a sceptic believes it: `./bench effect`.

Real servers in pods of their own under open-loop load, real offline work beside them, every way to bound it in random
order in each round, and online alone first and last in every round. A latency counts from when its request was due.
"""
