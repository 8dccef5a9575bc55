{{/* Which of the planes a Service leads to: tenants, admin or metrics. */}}
{{- define "fairlane.plane" -}}
fairlane.dev/plane: {{ . }}
{{- end }}

{{/* Names of all ports that tell metrics, as a JSON list. */}}
{{- define "fairlane.metricsPorts" -}}
{{- $ports := list "metrics" }}
{{- range $component, $it := include "fairlane.workloads" . | fromJson }}
{{- $ports = concat $ports (keys $it.ports) }}
{{- end }}
{{- uniq $ports | sortAlpha | toJson }}
{{- end }}

{{/* The gateway's ports for links from workers, by name, one for each process, as JSON. */}}
{{- define "fairlane.linkPorts" -}}
{{- $ports := dict }}
{{- range $number := until (int .Values.config.gateway.processes) }}
{{- $_ := set $ports (ternary (printf "link-%d" $number) "link" (gt $number 0)) (add $.Values.gateway.linkPort $number) }}
{{- end }}
{{- toJson $ports }}
{{- end }}

{{/* The same as `ports` of a NetworkPolicy. */}}
{{- define "fairlane.linkPolicyPorts" -}}
{{- range $name, $_ := include "fairlane.linkPorts" . | fromJson }}
- {port: {{ $name }}, protocol: TCP}
{{- end }}
{{- end }}

{{/* Which ways NetworkPolicies bound. */}}
{{- define "fairlane.policyTypes" -}}
{{- ternary "[Ingress]" "[Ingress, Egress]" (kindIs "invalid" .Values.networkPolicy.egress) }}
{{- end }}

{{/* Egress rules: the cluster's DNS servers, the release's own store and, for workers, its gateways, and the operator's list.
Takes (dict "root" $ "links" BOOL). */}}
{{- define "fairlane.egress" -}}
{{- $links := .links }}
{{- with .root }}
{{- if not (kindIs "invalid" .Values.networkPolicy.egress) }}
egress:
  - ports: [{port: 53, protocol: UDP}, {port: 53, protocol: TCP}]
    to: {{- toYaml .Values.networkPolicy.dns | nindent 6 }}
  {{- if .Values.valkey.enabled }}
  - ports: [{port: valkey, protocol: TCP}]
    to:
      - podSelector:
          matchLabels: {{- include "fairlane.selectorLabels" (dict "root" . "component" "valkey") | nindent 12 }}
  {{- end }}
  {{- if $links }}
  - ports: {{- include "fairlane.linkPolicyPorts" . | nindent 6 }}
    to:
      - podSelector:
          matchLabels: {{- include "fairlane.selectorLabels" (dict "root" . "component" "gateway") | nindent 12 }}
  {{- end }}
  {{- with .Values.networkPolicy.egress }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
{{- end }}
{{- end }}
