"""What is known of this node's kubelet: its command line, its configuration, its state files."""
