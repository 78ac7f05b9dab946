{{/* The objects below files/FOLDER, which are those of cluster/manifests and monitoring: the chart has none of its own
beside them but for the installer's, and a ConfigMap of the scheduler's files. `patch` names the template that changes
an object by the values, before it is written; it sets `leftOut` in one that is not to be there. */}}
{{- define "criproxy.objects" -}}
{{- $root := .root -}}
{{- $patch := .patch -}}
{{- range $path, $_ := $root.Files.Glob (printf "files/%s/*.yaml" .folder) -}}
{{- if ne (base $path) "kustomization.yaml" -}}
{{- range $text := regexSplit "(?m)^---$" ($root.Files.Get $path) -1 -}}
{{- $object := fromYaml $text -}}
{{- if not $object.kind }}{{ fail (printf "%s: %v" $path $object) }}{{ end -}}
{{- include $patch (dict "root" $root "object" $object) -}}
{{- if not $object.leftOut }}
---
{{ toYaml $object }}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "criproxy.image" -}}
{{ .Values.image.repository }}{{ if .Values.image.digest }}@{{ .Values.image.digest }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end -}}

{{/* A pod's image, and the nodes that it is for. `helm upgrade --reuse-values` has no architectures from an older chart. */}}
{{- define "criproxy.pod" -}}
{{- $image := .root.Values.image -}}
{{- range $container := .spec.containers -}}
{{- if eq .image "criproxy" -}}
{{- $_ := set . "image" (include "criproxy.image" $.root) -}}
{{- with $image.pullPolicy }}{{ $_ := set $container "imagePullPolicy" . }}{{ end -}}
{{- end -}}
{{- end -}}
{{- with $image.architectures -}}
{{- $term := index $.spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms 0 -}}
{{- $_ := set (index $term.matchExpressions 0) "values" . -}}
{{- end -}}
{{- with $image.pullSecrets }}{{ $_ := set $.spec "imagePullSecrets" . }}{{ end -}}
{{- end -}}

{{/* Where criproxy answers on a node with this config. */}}
{{- define "criproxy.address" -}}
{{ dig "observe" "address" "127.0.0.1:9464" . | replace "localhost" "127.0.0.1" }}
{{- end -}}

{{/* Helm can't own the namespace that its release is in: `--create-namespace` makes that one. */}}
{{- define "criproxy.namespace" -}}
{{- if and (eq .object.kind "Namespace") (eq .object.metadata.name .root.Release.Namespace) -}}
{{- $_ := set .object "leftOut" true -}}
{{- end -}}
{{- end -}}

{{/* Tables as TOML. Each value in it is written as JSON, which TOML takes, but for tables in a list. */}}
{{- define "criproxy.toml" -}}
{{- range $section, $keys := . }}
{{- if $keys }}
[{{ $section }}]
{{- range $key, $value := $keys }}
{{ $key }} = {{ include "criproxy.tomlValue" $value }}
{{- end }}
{{ end }}
{{- end }}
{{- end -}}

{{- define "criproxy.tomlValue" -}}
{{- if kindIs "map" . -}}
{ {{- range $index, $key := keys . | sortAlpha }}{{ if $index }},{{ end }} {{ $key }} = {{ include "criproxy.tomlValue" (get $ $key) }}{{ end }} }
{{- else if kindIs "slice" . -}}
[{{ range $index, $item := . }}{{ if $index }}, {{ end }}{{ include "criproxy.tomlValue" $item }}{{ end }}]
{{- else -}}
{{ toJson . }}
{{- end -}}
{{- end -}}
