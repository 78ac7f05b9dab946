"""`criproxy explain`: what would become of a pod, and why."""
