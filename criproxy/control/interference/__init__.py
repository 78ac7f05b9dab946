"""Harm to online pods: seen by detectors, its cause proved by an experiment, answered rung by rung; pure.

| file         | what                                                                        |
|--------------|-----------------------------------------------------------------------------|
| detectors.py | which signals tell of harm, and from which value on (a bar that is learned) |
| ladder.py    | what is done about it: one table of transitions, and the budget of evictions |
| victim.py    | which pod goes, when one has to                                             |
| responder.py | these put together: a tick's signals in, what holds from now on out         |
"""
