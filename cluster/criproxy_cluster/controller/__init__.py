"""The controller: nodes are told their policy, and what they say is shown. The leader alone runs it.

How it works
------------
    leader ──▶ controller ──▶ fleet ──▶ policies, node_law ──▶ what is written to Nodes and ColocationPolicies

What is decided is pure: `lease_law` (who leads), `policies` (what is said to which nodes), `node_law` (what is written
to one), `fleet` (which nodes a change concerns, and each policy's figures). `leader` and `controller` act.
"""
