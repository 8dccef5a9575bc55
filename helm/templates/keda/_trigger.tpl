{{/*
One figure of one lane of one model, for each worker. Takes (dict "root" $ "model" NAME "lane" NAME "figure" NAME "target" N).
Every gateway tells the same, so of Prometheus' samples the largest counts.
*/}}
{{- define "fairlane.trigger" -}}
{{- $values := .root.Values }}
{{- $name := include "fairlane.fullname" .root }}
{{- if eq $values.keda.source "prometheus" }}
- type: prometheus
  metricType: AverageValue
  metadata:
    serverAddress: {{ $values.keda.prometheus.serverAddress | quote }}
    query: {{ printf "max(fairlane_gateway_lane_%s{namespace=%q,model=%q,lane=%q})" .figure .root.Release.Namespace .model .lane | quote }}
    threshold: {{ int .target | quote }}
    ignoreNullValues: "false" # nothing was scraped: that is a failed reading, not an empty queue
{{- else }}
{{- $service := ternary (printf "%s-admin" $name) $name (ne (int $values.config.admin_port) 0) }}
{{- $port := ternary $values.config.admin_port $values.gateway.service.port (ne (int $values.config.admin_port) 0) }}
- type: metrics-api
  metricType: AverageValue
  metadata:
    url: {{ printf "http://%s.%s.svc:%d%s/admin/v1/lanes?model=%s" $service .root.Release.Namespace (int $port) (include "fairlane.rootPath" .root) (urlquery .model) | quote }}
    valueLocation: {{ printf "data.#(lane==%q).%s" .lane .figure | quote }}
    targetValue: {{ int .target | quote }}
    authMode: bearer
  authenticationRef: {name: {{ $name }}-lanes}
{{- end }}
{{- end }}
