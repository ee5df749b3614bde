{{- define "headstart.name" -}}
{{- .Release.Name | trunc 53 | trimSuffix "-" -}}
{{- end -}}

{{- define "headstart.selector" -}}
app.kubernetes.io/name: headstart
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "headstart.labels" -}}
{{ include "headstart.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "headstart.secret" -}}
{{- .Values.secret.existing | default (include "headstart.name" .) -}}
{{- end -}}
