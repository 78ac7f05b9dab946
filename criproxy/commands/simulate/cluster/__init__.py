"""Replay of a cluster: what recorded nodes would have lent to a queue of jobs, by criproxy's law and by its peers'.

    folder      what a user gives: nodes, their capacities, jobs; or the example
    record      one node on the grid of all: what online used
    laws        the table of laws: what a node publishes, when, and what the node does to offline pods
    forecast    per node: what each law would publish, by the product's own predictors and law
    queue       what waits, and where the scheduler puts it
    engine      the replay of some nodes by one law, in steps of 30 s
    figures     what is counted, and what it comes to
    text, page  the figures for people

Only `queue` and `engine` need numpy, and nothing imports them before it is known to be there.
"""
