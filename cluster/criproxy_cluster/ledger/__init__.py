"""The ledger: what each node has left of what it lends, for several schedulers at once. The leader alone decides.

How it works
------------
Kubernetes checks no capacity when a pod is bound. Two schedulers fill the same room, and kubelet fails the pod of one
for good (OutOfkubernetes.io/batch-cpu). The ledger is the one place that knows of all binds before they are stored:

    any scheduler ──▶ bind ──▶ API server ──▶ /bind: is there room? ──▶ allowed, and the room is taken; or refused
    one that asks first ──▶ gRPC Reserve ──▶ its room is taken; then it binds, by /bind as all do
    kube-scheduler ──▶ /filter: which of these nodes have room? (advice)
                                                     ▲
    watch of Nodes and of marked pods ───────────────┘

`law` decides, `pods` and `reviews` read; these are pure. `desk` is where all doors come together: it lets requests wait
for their turn, reads what is not known, ends what is over, and abstains. `watching` keeps the law up to date,
`http_door` and `grpc_door` are the doors, and `messages` has what is said at the second.

Whose bind it is
----------------
Of most binds the ledger has nothing to say, and they pass at once: those of pods that are not marked. Three cases are
told apart by the pod's uid: it waits and is marked (decided), it waits and is not marked (passes), it is not known (the
pod is read; one or two in a thousand). For that, pods that wait and are not marked are watched too, by their uid alone.

Never worse than without it
---------------------------
A bind that the ledger does not answer is stored as without it (failurePolicy Ignore, a second), and kubelet remains the
last guard. So where what is known may not be true the ledger abstains, in words and with 503, rather than refuse:

| when | why |
|---|---|
| it does not lead, or not for `desk.ABSTAIN_S` yet | another one's binds may not be stored, or not seen, yet |
| it has not listed all yet, or a watch is lost | it does not know what there is |
| a bind that was stored for 10 s is not in the watch | the watch is late |
| it would refuse, and has heard nothing of pods for `desk.SILENT_S` | a watch may be dead without a word |
| the pod is not known, and can't be read (`desk.READ_S`, `desk.MOST_READS`) | it may be marked or not |
"""
