"""The box on nodes whose cgroups systemd manages."""
