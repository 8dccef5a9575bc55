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
Engines by their name, each with all its values, as JSON. `leaseHolders` has those of the adapters too, and `shm` is the size of
/dev/shm, in which vLLM keeps the KV blocks that it offloads.
*/}}
{{- define "fairlane.engines" -}}
{{- $all := dict }}
{{- range $name, $given := .Values.engines }}
{{- $engine := mergeOverwrite (deepCopy $.Values.engineDefaults) (default dict $given) }}
{{- $holders := $engine.leaseHolders }}
{{- range $engine.vllm.lora.adapters }}
{{- $holders = append $holders (dict "engineModel" .name "maxSequences" .maxSequences) }}
{{- end }}
{{- $shared := $engine.vllm.sharedMemory }}
{{- with $engine.vllm.kvOffloading }}
{{- if and .gib (eq .backend "native") }}
{{- $shared = addf (include "fairlane.bytes" $shared) (mulf .gib 1073741824) | printf "%.0f" }}
{{- end }}
{{- end }}
{{- $_ := set $all $name (mergeOverwrite $engine (dict "leaseHolders" $holders "shm" $shared)) }}
{{- end }}
{{- toJson $all }}
{{- end }}

{{/* A quantity as a number of bytes. */}}
{{- define "fairlane.bytes" -}}
{{- $text := kindIs "string" . | ternary (toString .) (float64 . | printf "%.0f") }}
{{- $number := regexFind "^[0-9.]+" $text }}
{{- $units := dict "" 1 "m" 0.001 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "E" 1e18 }}
{{- $powers := dict "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "Pi" 1125899906842624 "Ei" 1152921504606846976 }}
{{- mulf $number (get (merge $units $powers) (trimPrefix $number $text)) | printf "%.0f" }}
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
{{- range $name, $engine := include "fairlane.engines" . | fromJson }}
{{- $ports := ternary (dict) (dict "engine" 8000) (ne $engine.url "") }}
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
