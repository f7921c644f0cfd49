{{- define "trainvitals.labels" -}}
app.kubernetes.io/name: trainvitals
app.kubernetes.io/component: agent
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "trainvitals.token" -}}
{{ .Values.token.existingSecret | default "trainvitals-token" }}
{{- end }}

{{- /* A page that needs a token, as the operator's objects say it. */}}
{{- define "trainvitals.scraped" -}}
interval: {{ .interval }}
honorLabels: true
authorization:
  credentials:
    name: {{ .secret }}
    key: token
{{- end }}
