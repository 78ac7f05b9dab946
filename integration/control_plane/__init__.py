"""Tests on a real control plane, whose programs are compiled first: `./test cluster` runs them, `./test` does not."""
