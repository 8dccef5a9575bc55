{{/* An engine's component, which its objects and their labels bear. Takes the engine's name. */}}
{{- define "fairlane.engineComponent" -}}
engine-{{ . }}
{{- end }}

{{/*
vLLM, in the pod for the lease holders alone: whoever calls it chooses the priority. So other pods reach its health and its
metrics, and nothing else (files/engine/local_only.py). Takes (dict "root" $ "engine" VALUES).
*/}}
{{- define "fairlane.vllm" -}}
{{- $root := .root }}
{{- $engine := .engine }}
{{- $vllm := $engine.vllm }}
{{- $given := dict }}
{{- range $engine.extraEnv }}
{{- $_ := set $given .name true }}
{{- end }}
{{- $sequences := 0 }}
{{- range $engine.leaseHolders }}
{{- $sequences = add $sequences .maxSequences }}
{{- end }}
- name: vllm
  restartPolicy: Always # a sidecar: it starts before the lease holders, and ends when their drain has
  image: {{ include "fairlane.image" (dict "root" .root "image" $vllm.image) }}
  imagePullPolicy: {{ $vllm.image.pullPolicy }}
  command: [vllm, serve]
  args:
    - {{ $engine.model | quote }}
    - --host=0.0.0.0
    - --port=8000
    - --middleware=local_only.LocalOnly
    - --disable-access-log-for-endpoints=/health,/metrics
    - --enable-scale-out
    - --scheduling-policy=priority
    - --enable-prompt-tokens-details
    - --structured-outputs-config={"backend":"guidance"}
    - --max-num-seqs={{ $sequences }}
    - --max-num-batched-tokens={{ int $engine.maxStepTokens }}
    - --tensor-parallel-size={{ int $vllm.tensorParallel }}
    - --pipeline-parallel-size={{ int $vllm.pipelineParallel }}
    {{- with $vllm.servedModelName }}
    - --served-model-name={{ . }}
    {{- end }}
    {{- with include "fairlane.loraArgs" $vllm.lora | trim }}
    {{- . | nindent 4 }}
    {{- end }}
    {{- with $vllm.kvOffloading }}
    {{- if .gib }}
    - --kv-offloading-size={{ .gib }}
    - --kv-offloading-backend={{ .backend }}
    {{- end }}
    {{- end }}
    {{- with $vllm.args }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  env:
    - name: HOME
      value: /var/lib/engine
    - name: USER # torch asks for the name of a user that the image does not know
      value: fairlane
    - name: HF_HOME
      value: /weights/huggingface
    {{- if not $given.PYTHONPATH }}
    - name: PYTHONPATH
      value: /etc/fairlane-engine
    {{- end }}
    - name: VLLM_NO_USAGE_STATS
      value: "1"
    {{- with include "fairlane.hubEnv" $root }}
    {{- . | nindent 4 }}
    {{- end }}
    {{- with $engine.extraEnv }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  ports:
    - name: engine
      containerPort: 8000
  startupProbe:
    httpGet: {path: /health, port: engine}
    periodSeconds: 5
    timeoutSeconds: 5
    failureThreshold: {{ div (add 4 $engine.startSeconds) 5 }}
  livenessProbe:
    httpGet: {path: /health, port: engine}
    periodSeconds: 20
    timeoutSeconds: 15
    failureThreshold: 6
  readinessProbe:
    httpGet: {path: /health, port: engine}
    periodSeconds: 10
    timeoutSeconds: 10
  resources:
    {{- $gpus := dict }}
    {{- with $vllm.gpuResource }}
    {{- $gpus = dict . (mul $vllm.tensorParallel $vllm.pipelineParallel) }}
    {{- end }}
    {{- toYaml (mergeOverwrite (deepCopy $vllm.resources) (dict "limits" $gpus)) | nindent 4 }}
  securityContext: {{- toYaml (mergeOverwrite (deepCopy .root.Values.securityContext) $vllm.securityContext) | nindent 4 }}
  volumeMounts:
    - {name: guard, mountPath: /etc/fairlane-engine, readOnly: true}
    - {name: weights, mountPath: /weights}
    - {name: engine, mountPath: /var/lib/engine}
    - {name: shm, mountPath: /dev/shm}
    - {name: tmp, mountPath: /tmp}
    {{- with $engine.extraVolumeMounts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}

{{/* vLLM's arguments for its adapters. Takes vllm.lora. */}}
{{- define "fairlane.loraArgs" -}}
{{- with .adapters }}
- --enable-lora
- --max-lora-rank={{ int $.maxRank }}
- --max-loras={{ default (len .) $.maxLoras | int }}
- --max-cpu-loras={{ max (len .) $.maxLoras }}
- --lora-modules
{{- range . }}
- {{ dict "name" .name "path" .path | toJson | quote }}
{{- end }}
{{- end }}
{{- end }}

{{/* A lease holder, a worker without torch. Takes (dict "root" $ "engine" VALUES "number" N), N of its leaseHolders. */}}
{{- define "fairlane.leaseHolder" -}}
{{- $root := .root }}
{{- $engine := .engine }}
{{- $holder := index $engine.leaseHolders .number }}
{{- $port := ternary (printf "metrics-%d" .number) "metrics" (gt .number 0) }}
- name: {{ ternary (printf "lease-holder-%d" .number) "lease-holder" (gt .number 0) }}
  image: {{ include "fairlane.image" (dict "root" .root "image" .root.Values.leaseHolder.image) }}
  imagePullPolicy: {{ .root.Values.leaseHolder.image.pullPolicy }}
  command: [python, -m, fairlane.worker]
  env:
    {{- include "fairlane.env" (dict "root" .root) | nindent 4 }}
    - name: HF_HOME
      value: /var/lib/fairlane/huggingface
    - name: FAIRLANE_MODEL
      value: {{ $engine.model | quote }}
    - name: FAIRLANE_WORKER__ENGINE
      value: {{ $engine.kind }}
    - name: FAIRLANE_WORKER__ENGINE_URL
      value: {{ default "http://127.0.0.1:8000" $engine.url | quote }}
    {{- with $holder.engineModel }}
    - name: FAIRLANE_WORKER__ENGINE_MODEL
      value: {{ . | quote }}
    {{- end }}
    {{- with $engine.key.existingSecret }}
    - name: FAIRLANE_WORKER__ENGINE_KEY
      valueFrom:
        secretKeyRef:
          name: {{ . }}
          key: {{ $engine.key.secretKey }}
    {{- end }}
    - name: FAIRLANE_WORKER__MAX_SEQUENCES
      value: {{ int $holder.maxSequences | quote }}
    - name: FAIRLANE_WORKER__MAX_STEP_TOKENS
      value: {{ int $engine.maxStepTokens | quote }}
    - name: FAIRLANE_WORKER__METRICS_PORT
      value: {{ add .root.Values.config.worker.metrics_port .number | quote }}
    {{- with include "fairlane.hubEnv" $root }}
    {{- . | nindent 4 }}
    {{- end }}
    {{- with $engine.extraEnv }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  ports:
    - name: {{ $port }}
      containerPort: {{ add .root.Values.config.worker.metrics_port .number }}
  {{- include "fairlane.workerProbes" (dict "port" $port "startSeconds" $engine.startSeconds) | nindent 2 }}
  resources: {{- toYaml .root.Values.leaseHolder.resources | nindent 4 }}
  securityContext: {{- toYaml .root.Values.securityContext | nindent 4 }}
  volumeMounts:
    - {name: config, mountPath: /etc/fairlane, readOnly: true}
    - {name: data, mountPath: /var/lib/fairlane}
    {{- if or (not $engine.url) $engine.weights.existingClaim $engine.weights.create }}
    - {name: weights, mountPath: /weights, readOnly: true}
    {{- end }}
    - {name: tmp, mountPath: /tmp}
    {{- with include "fairlane.storeMount" .root }}
    {{- . | nindent 4 }}
    {{- end }}
    {{- with include "fairlane.linkTlsMount" .root }}
    {{- . | nindent 4 }}
    {{- end }}
    {{- with $engine.extraVolumeMounts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}
