// The usual entry of a mixin: prometheusRules, prometheusAlerts and grafanaDashboards. What they say is made by
// `python -m monitoring.generate` (made/); `_config` says how your Prometheus names its jobs.
local replaced(text, pairs) =
  std.foldl(
    function(found, pair) std.strReplace(found, std.strReplace(pair[0], '"', '\\"'), std.strReplace(pair[1], '"', '\\"')),
    pairs,
    text
  );

{
  _config:: {
    // Whatever scrapes nodes: criproxy itself, or node_exporter with criproxy's textfile.
    nodeSelector: 'job=~"criproxy|node|node-exporter"',
    // Of `up`, for criproxy itself.
    upSelector: 'job="criproxy"',
    // Webhook and controller.
    clusterSelector: 'job="criproxy-cluster"',
    // What stands before the section of each alert.
    runbookURL: 'docs/monitoring.md',
  },

  local read(text) = std.parseJson(replaced(text, [
    ['job=~"criproxy|node|node-exporter"', $._config.nodeSelector],
    ['job="criproxy"', $._config.upSelector],
    ['job="criproxy-cluster"', $._config.clusterSelector],
    ['docs/monitoring.md', $._config.runbookURL],
  ])),

  prometheusRules+:: read(importstr 'made/rules.json'),
  prometheusAlerts+:: read(importstr 'made/alerts.json'),
  grafanaDashboards+:: {
    'criproxy-fleet.json': read(importstr 'made/dashboards/fleet.json'),
    'criproxy-node.json': read(importstr 'made/dashboards/node.json'),
  },
}
