{{- define "fairlane.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- define "fairlane.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- else if contains (include "fairlane.name" .) .Release.Name }}
{{- .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "fairlane.name" .) | trunc 50 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "fairlane.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "fairlane.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{/* What selects an object's pods. Takes (dict "root" $ "component" NAME). */}}
{{- define "fairlane.selectorLabels" -}}
app.kubernetes.io/name: {{ include "fairlane.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* All labels of an object. Takes the same. */}}
{{- define "fairlane.labels" -}}
{{ include "fairlane.selectorLabels" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end }}

{{/* The prefix of all of the gateway's paths, without a slash at its end; empty: none. */}}
{{- define "fairlane.rootPath" -}}
{{- dig "root_path" "" .Values.config.gateway | default "" | trimSuffix "/" }}
{{- end }}

{{/* The path at which tenants reach the gateway. Takes (dict "root" $ "path" GIVEN). */}}
{{- define "fairlane.path" -}}
{{- .path | default (include "fairlane.rootPath" .root) | default "/" }}
{{- end }}

{{/* Where tenants' files stand, from the configuration or the gateway's own variables; empty: on each pod's own disk. */}}
{{- define "fairlane.filesUrl" -}}
{{- $url := dig "files" "url" "" .Values.config.gateway }}
{{- range .Values.gateway.extraEnv }}
{{- if eq .name "FAIRLANE_GATEWAY__FILES__URL" }}
{{- $url = default "from another object" .value }}
{{- end }}
{{- end }}
{{- $url }}
{{- end }}

{{/* An image reference. Takes (dict "root" $ "image" VALUES). */}}
{{- define "fairlane.image" -}}
{{- if .image.digest }}
{{- printf "%s@%s" .image.repository .image.digest }}
{{- else }}
{{- printf "%s:%s" .image.repository (default .root.Chart.AppVersion .image.tag) }}
{{- end }}
{{- end }}

{{/* What both processes are told. Takes (dict "root" $ "component" NAME). */}}
{{- define "fairlane.env" -}}
- name: FAIRLANE_CONFIG
  value: /etc/fairlane/fairlane.yaml
- name: FAIRLANE_DATA_DIR
  value: /var/lib/fairlane
- name: HOME
  value: /var/lib/fairlane
- name: FAIRLANE_REDIS_URL
  valueFrom:
    secretKeyRef:
      {{- if .root.Values.valkey.enabled }}
      name: {{ .root.Values.valkey.existingSecret }}
      key: url
      {{- else }}
      name: {{ .root.Values.store.existingSecret }}
      key: {{ .root.Values.store.secretKey }}
      {{- end }}
{{- include "fairlane.linkTlsEnv" .root }}
{{- with .root.Values.otlpEndpoint }}
- name: OTEL_EXPORTER_OTLP_ENDPOINT
  value: {{ . | quote }}
{{- end }}
{{- end }}

{{/* The hub's token, for whatever loads a model. Takes the root. */}}
{{- define "fairlane.hubEnv" -}}
{{- with .Values.hub.existingSecret }}
- name: HF_TOKEN
  valueFrom:
    secretKeyRef: {name: {{ . }}, key: {{ $.Values.hub.secretKey }}}
{{- end }}
{{- end }}

{{/* The authority of the store's certificate, as a volume and where it is mounted. Both take the root. */}}
{{- define "fairlane.storeVolume" -}}
{{- with .Values.store.ca.existingSecret }}
- name: store-ca
  secret:
    secretName: {{ . }}
    items: [{key: {{ $.Values.store.ca.secretKey }}, path: ca.crt}]
{{- end }}
{{- end }}

{{- define "fairlane.storeMount" -}}
{{- if .Values.store.ca.existingSecret }}
- {name: store-ca, mountPath: /etc/fairlane-store, readOnly: true}
{{- end }}
{{- end }}

{{/* The Secret with the certificate of links; empty: links without TLS. Takes the root, as the other three. */}}
{{- define "fairlane.linkTlsSecret" -}}
{{- if .Values.linkTls.certManager.enabled }}
{{- printf "%s-links" (include "fairlane.fullname" .) }}
{{- else }}
{{- .Values.linkTls.existingSecret }}
{{- end }}
{{- end }}

{{- define "fairlane.linkTlsEnv" -}}
{{- if include "fairlane.linkTlsSecret" . }}
{{- range $name, $file := dict "CERT" "tls.crt" "KEY" "tls.key" "CA" "ca.crt" }}
- name: FAIRLANE_LINK_TLS__{{ $name }}
  value: /etc/fairlane-links/{{ $file }}
{{- end }}
{{- end }}
{{- end }}

{{- define "fairlane.linkTlsVolume" -}}
{{- with include "fairlane.linkTlsSecret" . }}
- name: link-tls
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- end }}

{{- define "fairlane.linkTlsMount" -}}
{{- if include "fairlane.linkTlsSecret" . }}
- {name: link-tls, mountPath: /etc/fairlane-links, readOnly: true}
{{- end }}
{{- end }}
