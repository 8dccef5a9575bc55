{{/* An engine's component, which its objects and their labels bear. Takes the engine's name. */}}
{{- define "fairlane.engineComponent" -}}
engine-{{ . }}
{{- end }}

{{/*
vLLM, in the pod for the lease holders alone: it listens where nobody else reaches it, since whoever does chooses the
priority. So its probes are commands. Takes (dict "root" $ "engine" VALUES).
*/}}
{{- define "fairlane.vllm" -}}
{{- $engine := .engine }}
{{- $vllm := $engine.vllm }}
{{- $sequences := 0 }}
{{- range $engine.leaseHolders }}
{{- $sequences = add $sequences .maxSequences }}
{{- end }}
{{- $asked := list "python3" "-c" "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/health', timeout=5)" }}
- name: vllm
  restartPolicy: Always # a sidecar: it starts before the lease holders, and ends when their drain has
  image: {{ include "fairlane.image" (dict "root" .root "image" $vllm.image) }}
  imagePullPolicy: {{ $vllm.image.pullPolicy }}
  command: [vllm, serve]
  args:
    - {{ $engine.model | quote }}
    - --host=127.0.0.1
    - --port=8000
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
    - name: VLLM_NO_USAGE_STATS
      value: "1"
    {{- with $engine.extraEnv }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  startupProbe:
    exec: {command: {{ toJson $asked }}}
    periodSeconds: 5
    timeoutSeconds: 10
    failureThreshold: {{ div (add 4 $engine.startSeconds) 5 }}
  livenessProbe:
    exec: {command: {{ toJson $asked }}}
    periodSeconds: 20
    timeoutSeconds: 15
    failureThreshold: 6
  readinessProbe:
    exec: {command: {{ toJson $asked }}}
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
    - {name: weights, mountPath: /weights}
    - {name: engine, mountPath: /var/lib/engine}
    - {name: shm, mountPath: /dev/shm}
    - {name: tmp, mountPath: /tmp}
{{- end }}

{{/* A lease holder, a worker without torch. Takes (dict "root" $ "engine" VALUES "number" N), N of its leaseHolders. */}}
{{- define "fairlane.leaseHolder" -}}
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
{{- end }}
