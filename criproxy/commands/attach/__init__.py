"""`criproxy attach` and `detach`: points this node's kubelet at criproxy, and back at its runtime."""
