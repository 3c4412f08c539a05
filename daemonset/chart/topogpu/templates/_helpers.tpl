{{/* What the names of all objects begin with. */}}
{{- define "topogpu.fullname" -}}
{{ .Values.fullnameOverride | default "topogpu" }}
{{- end }}

{{/* Labels and annotations of every object, with `labels` and `annotations` of its own:
include "topogpu.metadata" (dict "context" . "component" "scheduler") */}}
{{- define "topogpu.metadata" -}}
labels:
  {{- include "topogpu.selectorLabels" . | nindent 2 }}
  app.kubernetes.io/version: {{ .context.Chart.AppVersion | quote }}
  {{- with merge dict (.labels | default dict) .context.Values.commonLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with merge dict (.annotations | default dict) .context.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Labels that tell a component's pods from others; they never change. Takes the same dict. */}}
{{- define "topogpu.selectorLabels" -}}
app.kubernetes.io/name: {{ .context.Values.nameOverride | default "topogpu" }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* Labels of our own pods, with `more` of the values; our own webhook never holds them up. */}}
{{- define "topogpu.podLabels" -}}
{{ include "topogpu.selectorLabels" . }}
hami.io/webhook: ignore
{{- with merge dict (.more | default dict) .context.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Image reference: include "topogpu.image" (dict "image" .Values.image "tag" .Chart.AppVersion) */}}
{{- define "topogpu.image" -}}
{{ .image.repository }}{{ with .image.tag | default .tag }}:{{ . }}{{ end }}{{ with .image.digest }}@{{ . }}{{ end }}
{{- end }}

{{/* The cluster's version as an image tag: what a distribution adds behind it names no image. */}}
{{- define "topogpu.clusterVersion" -}}
{{ regexFind "^v[0-9]+[.][0-9]+[.][0-9]+" .Capabilities.KubeVersion.Version }}
{{- end }}

{{- define "topogpu.kubeSchedulerReadiness" -}}
{{- $version := regexFind "[0-9]+[.][0-9]+[.][0-9]+" .Values.kubeScheduler.image.tag | default (include "topogpu.clusterVersion" .) -}}
{{ semverCompare ">=1.31.0" (trim $version) | ternary "/readyz" "/healthz" }}
{{- end }}

{{/* The host's folder above dev, where the daemon itself gives containers the device files. */}}
{{- define "topogpu.devRoot" -}}
{{- ternary "/" (dig "dev_root" "/" .Values.devicePlugin.settings) (empty .Values.devicePlugin.driver.root) }}
{{- end }}

{{/* Where the daemon has the driver's folder of the host. */}}
{{- define "topogpu.driverSeen" -}}
{{- $driver := .Values.devicePlugin.driver -}}
{{- if and $driver.root (not (has (include "topogpu.devRoot" .) (list "/" $driver.root))) -}}
{{- fail "devicePlugin.settings.dev_root is neither / nor devicePlugin.driver.root" -}}
{{- end -}}
{{- printf "/host%s" $driver.root | trimSuffix "/" -}}
{{- end }}

{{- define "topogpu.restricted" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "topogpu.podIdentity" -}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: POD_NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
{{- end }}

{{/* A CEL list of the annotations that only scheduler and daemon write: proto/annotations/keys.py. */}}
{{- define "topogpu.writtenKeys" -}}
{{ include "topogpu.cel" (list "hami.io/vgpu-node" "hami.io/vgpu-time" "hami.io/vgpu-devices-to-allocate" "hami.io/vgpu-devices-allocated" "hami.io/vgpu-mig-allocations" "hami.io/bind-phase" "hami.io/bind-time" "topogpu.io/nudge" "topogpu.io/gpu-memory-resize" "topogpu.io/set-aside") }}
{{- end }}

{{/* The resources that add up: a JSON list. */}}
{{- define "topogpu.sums" -}}
["topogpu.io/total-gpumem", "topogpu.io/total-gpucores"]
{{- end }}

{{/* What our webhooks have in common. */}}
{{- define "topogpu.webhook" }}
    clientConfig:
      service: {namespace: {{ .Release.Namespace }}, name: {{ include "topogpu.fullname" . }}-webhook, path: /webhook}
    rules:
      - {apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods], scope: Namespaced}
    matchPolicy: Equivalent
    reinvocationPolicy: IfNeeded
    sideEffects: None
    admissionReviewVersions: [v1, v1beta1]
{{- end }}

{{/* The status page's address in the pod; empty where it is off. */}}
{{- define "topogpu.statusAddress" -}}
{{- if .Values.statusPage.enabled }}{{ ternary ":9396" "127.0.0.1:9396" .Values.statusPage.service.enabled }}{{ end }}
{{- end }}

{{/* Whether other hosts reach the status page. */}}
{{- define "topogpu.statusOpen" -}}
{{- if and .Values.statusPage.enabled .Values.statusPage.service.enabled }}true{{ end }}
{{- end }}
