"""The controller: writes each node's policy to it, and shows what nodes report. The leader alone runs it.

How it works
------------
    leader ──▶ controller ──▶ fleet ──▶ policies, node_law ──▶ queue ──▶ what is written to Nodes and ColocationPolicies
                   ▲
               follower (lists and watches)

What is decided is pure: `lease_law` (who leads, and until when), `policies` (what is said to which nodes), `node_law`
(what is written to one), `fleet` (which nodes a change concerns, and each policy's figures), and of the vocabulary
`watching` (how lists and watches are read, and what to request next). `leader`, `follower` and `controller` act;
`queue` says who writes what next.
"""
