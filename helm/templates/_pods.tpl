{{/*
A worker's probes, which ask its metrics: no traffic comes in. Ready means that its model is there, and holds a rollout
until then. Takes (dict "port" NAME "startSeconds" N).
*/}}
{{- define "fairlane.workerProbes" -}}
startupProbe:
  httpGet: {path: /metrics, port: {{ .port }}}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: {{ div (add 4 .startSeconds) 5 }}
livenessProbe:
  httpGet: {path: /metrics, port: {{ .port }}}
  periodSeconds: 10
  timeoutSeconds: 10
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /metrics, port: {{ .port }}}
  periodSeconds: 5
  timeoutSeconds: 5
{{- end }}

{{/*
Where the pods of a component may run, and further fields of their spec. Takes (dict "values" VALUES), and "root" $ "component" NAME where there are several,
which stand on as many nodes and in as many zones as they can unless the values say otherwise.
*/}}
{{- define "fairlane.placement" -}}
{{- $part := . }}
{{- with .values }}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- if .topologySpreadConstraints }}
topologySpreadConstraints: {{- toYaml .topologySpreadConstraints | nindent 2 }}
{{- else if $part.component }}
topologySpreadConstraints:
  {{- range list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "fairlane.selectorLabels" $part | nindent 8 }}
  {{- end }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- with .podSpec }}
{{ toYaml . }}
{{- end }}
{{- end }}
{{- end }}
