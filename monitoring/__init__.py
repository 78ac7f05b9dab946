"""A mixin for Prometheus and Grafana: recording rules, alerts and dashboards, made from the metrics' own tables.

How it works
------------
    table.py (the metrics of daemon, webhook and controller) ──▶ checks each name and label in
    rules.py, dashboards.py ──▶ generate.py ──▶ made/ ──▶ mixin.libsonnet, or used as they are

docs/monitoring.md has a section for each alert. integration/test_monitoring.py has promtool try each alert both ways,
and a real Prometheus answer each expression.
"""
