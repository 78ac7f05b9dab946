"""What the ledger bears: reservations and binds a second, how soon it answers, its memory. `./bench ledger`

How it works
------------
    ledger, a process    `criproxy-cluster ledger`, as its Deployment runs it
    this process         an API server that is played (`api`), with 10,000 nodes and 110,000 pods of a real one's size,
                         and the clients of both doors (`run`)
    empty, a process     a gRPC server of the same library that does nothing: what of a call is the library's (`empty`)

What is let through is shown by the watch at once, as the API server would. The two share the machine's processors: what
is measured is the ledger with its clients beside it. `--crowd` is another one: real schedulers (`crowd`).
"""
