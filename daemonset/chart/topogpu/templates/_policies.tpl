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
  expression: {{ printf "!(request.userInfo.username in %s)" (include "topogpu.cel" (concat .users .context.Values.policies.trustedUsers)) | quote }}
- name: not-trusted-group
  expression: {{ printf "!has(request.userInfo.groups) || !request.userInfo.groups.exists(g, g in %s)" (include "topogpu.cel" .context.Values.policies.trustedGroups) | quote }}
{{- end }}

{{/* Whether daemons evict pods from GPUs that stay unhealthy. */}}
{{- define "topogpu.evicts" -}}
{{- if hasPrefix "evict" (dig "remediation" "" .Values.devicePlugin.settings | toString) }}true{{ end }}
{{- end }}

{{/* A CEL list of texts. Names of users and groups are an identity provider's: a backslash or an apostrophe may be in them. */}}
{{- define "topogpu.cel" -}}
[{{ range $index, $text := . }}{{ if $index }}, {{ end }}'{{ $text | replace `\` `\\` | replace `'` `\'` }}'{{ end }}]
{{- end }}

{{/* What a Node's capacity tells of its GPUs, beside their number: a CEL list. */}}
{{- define "topogpu.totals" -}}
{{- $names := .Values.resourceNames }}
{{- include "topogpu.cel" (list $names.memory $names.memoryPercentage $names.cores $names.priority) }}
{{- end }}

{{/* Whether the daemon labels Nodes, under whatever configuration. */}}
{{- define "topogpu.labelsNodes" -}}
{{- range prepend (values .Values.devicePlugin.configs) .Values.devicePlugin.settings }}{{ if .feature_labels }}true{{ end }}{{ end }}
{{- end }}

{{/* Whether the label k tells of a Node's GPUs: deviceplugin/labels.py. */}}
{{- define "topogpu.isFeatureLabel" -}}
k.matches('^nvidia[.]com/(cuda[.](driver|runtime)(-version)?[.](full|major|minor|rev|revision)|mig[.](capable|strategy)|mps[.]capable|(gpu|mig-[0-9a-z.]+)[.](product|count|replicas|sharing-strategy|memory|family|compute[.](major|minor)|machine|mode|clique|multiprocessors|slices[.](gi|ci)|engines[.](copy|decoder|encoder|jpeg|ofa)))$')
{{- end }}

{{/* Namespaces whose pods without GPUs of their own may see every GPU: a JSON list. */}}
{{- define "topogpu.exemptNamespaces" -}}
{{ append (.Values.policies.bypass.exemptNamespaces | default list) .Release.Namespace | uniq | toJson }}
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
