{{/* Labels of every object: include "topogpu.labels" (dict "context" . "component" "scheduler") */}}
{{- define "topogpu.labels" -}}
{{ include "topogpu.selectorLabels" . }}
app.kubernetes.io/version: {{ .context.Chart.AppVersion | quote }}
{{- end }}

{{/* Labels that tell a component's pods from others; they never change. Takes the same dict. */}}
{{- define "topogpu.selectorLabels" -}}
app.kubernetes.io/name: topogpu
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* Labels of our own pods; our own webhook never holds them up. */}}
{{- define "topogpu.podLabels" -}}
{{ include "topogpu.selectorLabels" . }}
hami.io/webhook: ignore
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

{{/* Where the daemon has the driver's folder of the host: it cannot have / there. */}}
{{- define "topogpu.driverSeen" -}}
{{- $driver := .Values.devicePlugin.driver -}}
{{- if and $driver.root (not (has $driver.devRoot (list "/" $driver.root))) -}}
{{- fail "devicePlugin.driver.devRoot is neither / nor devicePlugin.driver.root" -}}
{{- end -}}
{{- eq $driver.root "/" | ternary "/host" $driver.root -}}
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
{{ include "topogpu.cel" (list "hami.io/vgpu-node" "hami.io/vgpu-time" "hami.io/vgpu-devices-to-allocate" "hami.io/vgpu-devices-allocated" "hami.io/vgpu-mig-allocations" "hami.io/bind-phase" "hami.io/bind-time" "topogpu.io/nudge") }}
{{- end }}

{{/* What our webhooks have in common. */}}
{{- define "topogpu.webhook" }}
    clientConfig:
      service: {namespace: {{ .namespace }}, name: topogpu-webhook, path: /webhook}
    rules:
      - {apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods], scope: Namespaced}
    matchPolicy: Equivalent
    reinvocationPolicy: IfNeeded
    sideEffects: None
    admissionReviewVersions: [v1, v1beta1]
{{- end }}

{{/* The port of the status page where other hosts reach it; empty where it is off or on loopback. */}}
{{- define "topogpu.statusPort" -}}
{{- $address := get .Values.scheduler.settings "status-bind-address" | default "" }}
{{- if and $address (not (regexMatch "^(localhost|127\\.[0-9.]+|\\[::1\\]):" $address)) }}
{{- regexFind "[0-9]+$" $address }}
{{- end }}
{{- end }}
