"""Benchmarks: what criproxy costs in time, CPU and memory. `./bench` runs them all; none is a test."""
