{{/* The user names of the two service accounts. */}}
{{- define "topogpu.devicePluginUser" -}}
system:serviceaccount:{{ .Release.Namespace }}:topogpu-device-plugin
{{- end }}

{{- define "topogpu.schedulerUser" -}}
system:serviceaccount:{{ .Release.Namespace }}:topogpu-scheduler
{{- end }}

{{/* Whether the API server knows ValidatingAdmissionPolicies in v1. */}}
{{- define "topogpu.policies" -}}
{{- if and .Values.policies.enabled (semverCompare ">=1.30.0-0" .Capabilities.KubeVersion.Version) }}true{{ end }}
{{- end }}

{{/* matchConditions that leave out whom the cluster trusts: include "topogpu.strangers" (dict "context" . "users" (list ...)) */}}
{{- define "topogpu.strangers" -}}
- name: not-trusted-user
  expression: "!(request.userInfo.username in {{ include "topogpu.cel" (concat .users .context.Values.policies.trustedUsers) }})"
- name: not-trusted-group
  expression: "!has(request.userInfo.groups) || !request.userInfo.groups.exists(g, g in {{ include "topogpu.cel" .context.Values.policies.trustedGroups }})"
{{- end }}

{{/* A CEL list of texts. */}}
{{- define "topogpu.cel" -}}
[{{ range $index, $text := . }}{{ if $index }}, {{ end }}'{{ $text }}'{{ end }}]
{{- end }}

{{/* The binding that puts a policy into force: include "topogpu.policyBinding" (dict "context" . "name" "topogpu-...") */}}
{{- define "topogpu.policyBinding" -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ .name }}
  labels: {{- include "topogpu.labels" (dict "context" .context "component" "policies") | nindent 4 }}
spec:
  policyName: {{ .name }}
  validationActions: {{ .actions | default .context.Values.policies.validationActions | toJson }}
{{- end }}
