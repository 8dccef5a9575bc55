{{/* The name under which gateways know a model that a worker of our own loads: as worker/model/files.py has it. */}}
{{- define "fairlane.servedName" -}}
{{- if hasSuffix ".gguf" . }}
{{- base . | trimSuffix ".gguf" }}
{{- else if hasPrefix "/" . }}
{{- base . }}
{{- else }}
{{- . }}
{{- end }}
{{- end }}

{{/* Workers of our own engine by their component, each with all its values, as JSON. */}}
{{- define "fairlane.workerGroups" -}}
{{- $groups := dict }}
{{- if .Values.worker.enabled }}
{{- $_ := set $groups "worker" .Values.worker }}
{{- end }}
{{- range $name, $given := .Values.workers }}
{{- $_ := set $groups (printf "worker-%s" $name) (mergeOverwrite (deepCopy $.Values.worker) (default dict $given)) }}
{{- end }}
{{- $all := dict }}
{{- range $component, $group := $groups }}
{{- $section := mergeOverwrite (deepCopy $.Values.config.worker) $group.config }}
{{- $own := dict "model" (default $.Values.config.model $group.model) "section" $section }}
{{- $_ := set $all $component (mergeOverwrite (deepCopy $group) $own) }}
{{- end }}
{{- toJson $all }}
{{- end }}

{{/*
Whatever takes jobs, by its component, as JSON: what its budgets, metrics, policies, autoscalers and claims are made from.
`scaled`: how many there are is an autoscaler's to say.
*/}}
{{- define "fairlane.workloads" -}}
{{- $all := dict }}
{{- range $component, $group := include "fairlane.workerGroups" . | fromJson }}
{{- $ports := dict "metrics" $group.section.metrics_port }}
{{- $models := list (include "fairlane.servedName" $group.model) }}
{{- $scaled := $group.autoscaling.enabled }}
{{- $_ := set $all $component (dict "values" $group "ports" $ports "models" $models "volume" $group.models "scaled" $scaled) }}
{{- end }}
{{- range $name, $given := .Values.engines }}
{{- $engine := mergeOverwrite (deepCopy $.Values.engineDefaults) (default dict $given) }}
{{- $ports := dict }}
{{- $models := list }}
{{- range $number, $holder := $engine.leaseHolders }}
{{- $port := ternary (printf "metrics-%d" $number) "metrics" (gt $number 0) }}
{{- $_ := set $ports $port (add $.Values.config.worker.metrics_port $number) }}
{{- $models = append $models (coalesce $holder.engineModel $engine.vllm.servedModelName $engine.model) }}
{{- end }}
{{- $scaled := and $engine.autoscaling.enabled (not $engine.url) }}
{{- $it := dict "values" $engine "ports" $ports "models" $models "volume" $engine.weights "scaled" $scaled }}
{{- $_ := set $all (include "fairlane.engineComponent" $name) $it }}
{{- end }}
{{- toJson $all }}
{{- end }}

{{/* The claim of a workload's volume, whether it exists or is made here; empty: an emptyDir. Takes (dict "root" $ "component" NAME "volume" VALUES). */}}
{{- define "fairlane.claim" -}}
{{- if .volume.create }}
{{- printf "%s-%s-models" (include "fairlane.fullname" .root) .component }}
{{- else }}
{{- .volume.existingClaim }}
{{- end }}
{{- end }}
