{{/* The user names of the two service accounts. */}}
{{- define "topogpu.devicePluginUser" -}}
system:serviceaccount:{{ .Release.Namespace }}:{{ include "topogpu.fullname" . }}-device-plugin
{{- end }}

{{- define "topogpu.schedulerUser" -}}
system:serviceaccount:{{ .Release.Namespace }}:{{ include "topogpu.fullname" . }}-scheduler
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

{{/* The list features of settings, with gpu-sums where the chart switches them on: JSON of (dict "context" . "settings" …). */}}
{{- define "topogpu.features" -}}
{{- $sums := .context.Values.gpuSums.enabled }}
{{- $own := .settings.features | default list }}
{{- if and (has "gpu-sums" $own) (not $sums) }}{{ fail "gpu-sums concern the whole chart: set gpuSums.enabled" }}{{ end }}
{{- concat $own ($sums | ternary (list "gpu-sums") list) | uniq | toJson }}
{{- end }}

{{/* The extender's settings gpu-core-policy and deny-bypass; YAML reads off as false. */}}
{{- define "topogpu.corePolicy" -}}{{ dig "gpu-core-policy" "default" .Values.scheduler.settings }}{{- end }}
{{- define "topogpu.denyBypass" -}}{{ dig "deny-bypass" "deny" .Values.scheduler.settings | toString | replace "false" "off" }}{{- end }}

{{/* Whether daemons evict pods from GPUs that stay unhealthy. */}}
{{- define "topogpu.evicts" -}}
{{- if contains "evict" (dig "remediation" "" .Values.devicePlugin.settings | toString) }}true{{ end }}
{{- end }}

{{/* A CEL list of texts. Names of users and groups are an identity provider's: a backslash or an apostrophe may be in them. */}}
{{- define "topogpu.cel" -}}
[{{ range $index, $text := . }}{{ if $index }}, {{ end }}'{{ $text | replace `\` `\\` | replace `'` `\'` }}'{{ end }}]
{{- end }}

{{/* CEL: whether the environment of the container c shows it GPUs past the scheduler. A test compares this and the next two with
tests/scheduler_ext/admission/webhook_conditions.py and the rules of proto/environment.py. */}}
{{- define "topogpu.choosesGpus" -}}
{{- $rules := `{'NVIDIA_VISIBLE_DEVICES': ['', 'none', 'void'],
'NVIDIA_IMEX_CHANNELS': ['', 'void'],
'NVIDIA_NVSWITCH': ['', 'disabled'],
'NVIDIA_GDRCOPY': ['', 'disabled'],
'NVIDIA_GDS': ['', 'disabled'],
'NVIDIA_MOFED': ['', 'disabled'],
'NVIDIA_MIG_CONFIG_DEVICES': [''],
'NVIDIA_MIG_MONITOR_DEVICES': ['']}` -}}
has(c.env) && ({{ include "topogpu.harmful" $rules }}
|| ({{ include "topogpu.harmful" "{'CUDA_VERSION': ['']}" }}
&& !c.env.exists(e, e.name == 'NVIDIA_VISIBLE_DEVICES')
&& !(has(c.resources) && has(c.resources.limits) && c.resources.limits.exists(r,
(r == '{{ .Values.resourceNames.count }}' || r.startsWith('nvidia.com/mig-')) && string(c.resources.limits[r]) != '0'))))
{{- end }}

{{/* CEL: whether the environment of the container c can lift the limits of a shared GPU. */}}
{{- define "topogpu.liftsLimits" -}}
{{- $rules := printf `{'CUDA_DISABLE_CONTROL': ['', '0', 'f', 'F', 'false', 'FALSE', 'False'],
'CUDA_DEVICE_ORDER': ['PCI_BUS_ID'],
'CUDA_DEVICE_MEMORY_SHARED_CACHE': [''],
'CUDA_REDIRECT': [''],
'NVIDIA_GPU_MEMORY_REQUEST': [''],
'NVIDIA_GPU_MEMORY_LIMIT': [''],
'GPU_CORE_UTILIZATION_POLICY': ['%s', 'force'],
'LD_PRELOAD': [''],
'LD_AUDIT': ['']}` (include "topogpu.corePolicy" .) -}}
has(c.env) && ({{ include "topogpu.harmful" $rules }}
|| c.env.exists(e, e.name.startsWith('CUDA_DEVICE_MEMORY_LIMIT') || e.name.startsWith('CUDA_DEVICE_SM_LIMIT')))
{{- end }}

{{/* CEL: whether the container c has one of these variables with another value than these. */}}
{{- define "topogpu.harmful" -}}
[{{ . }}].exists(rules,
c.env.exists(e, e.name in rules && (has(e.valueFrom) || !((has(e.value) ? e.value : '') in rules[e.name]))))
{{- end }}

{{/* What a Node's capacity tells of its GPUs, beside their number: a CEL list. */}}
{{- define "topogpu.totals" -}}
{{- $names := .Values.resourceNames }}
{{- include "topogpu.cel" (concat (list $names.memory $names.memoryPercentage $names.cores $names.priority) (include "topogpu.sums" . | fromJsonArray)) }}
{{- end }}

{{/* Whether the daemon labels Nodes, under whatever configuration. */}}
{{- define "topogpu.labelsNodes" -}}
{{- range prepend (values .Values.devicePlugin.configs) .Values.devicePlugin.settings }}{{ if has "gpu-labels" (.features | default list) }}true{{ end }}{{ end }}
{{- end }}

{{/* Whether the label k tells of a Node's GPUs: deviceplugin/labels.py. */}}
{{- define "topogpu.isFeatureLabel" -}}
k.matches('^nvidia[.]com/(cuda[.](driver|runtime)(-version)?[.](full|major|minor|rev|revision)|mig[.](capable|strategy)|mps[.]capable|(gpu|mig-[0-9a-z.]+)[.](product|count|replicas|sharing-strategy|memory|family|compute[.](major|minor)|machine|mode|clique|multiprocessors|slices[.](gi|ci)|engines[.](copy|decoder|encoder|jpeg|ofa)))$')
{{- end }}

{{/* Namespaces whose pods without GPUs of their own may see every GPU: a JSON list. */}}
{{- define "topogpu.exemptNamespaces" -}}
{{ append (.Values.policies.bypass.exemptNamespaces | default list) .Release.Namespace | uniq | toJson }}
{{- end }}

{{/* The binding that puts a policy into force: include "topogpu.policyBinding" (dict "context" . "name" "scheduler-nodes") */}}
{{- define "topogpu.policyBinding" -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ include "topogpu.fullname" .context }}-{{ .name }}
  {{- include "topogpu.metadata" (dict "context" .context "component" "policies") | nindent 2 }}
spec:
  policyName: {{ include "topogpu.fullname" .context }}-{{ .name }}
  validationActions: {{ .actions | default .context.Values.policies.validationActions | toJson }}
{{- end }}
