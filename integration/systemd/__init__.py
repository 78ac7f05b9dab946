"""Tests that need systemd as init and a machine that may be changed: they run on a throwaway node alone."""
