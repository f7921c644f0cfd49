{{- define "fleet.labels" -}}
{{ include "fleet.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end }}

{{- define "fleet.selector" -}}
app.kubernetes.io/name: trainvitals-fleet
app.kubernetes.io/component: {{ .part }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- end }}

{{- define "fleet.name" -}}
{{ .root.Release.Name }}-{{ .part }}
{{- end }}

{{- define "fleet.image" -}}
{{ required "set image.repository to your image" .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "fleet.store" -}}
{{ .Values.store.existingSecret | default (printf "%s-clickhouse" .Release.Name) }}
{{- end }}

{{- define "fleet.tokens" -}}
{{ required "set tokens.existingSecret to a secret with the key tokens.json" .Values.tokens.existingSecret }}
{{- end }}

{{- /* What every pod has: no account, no rights, a place on the nodes. `user` owns its files. */}}
{{- define "fleet.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: {{ .user }}
  runAsGroup: {{ .user }}
  fsGroup: {{ .user }}
  seccompProfile:
    type: RuntimeDefault
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "fleet.confined" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- end }}

{{- define "fleet.service" -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ include "fleet.name" . }}
  labels:
    {{- include "fleet.labels" . | nindent 4 }}
  {{- with .service.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  type: {{ .service.type | default "ClusterIP" }}
  selector:
    {{- include "fleet.selector" . | nindent 4 }}
  ports:
    - name: http
      port: {{ .service.port }}
      targetPort: http
{{- end }}

{{- /* Only the parts named may connect. */}}
{{- define "fleet.policy" -}}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ include "fleet.name" . }}
  labels:
    {{- include "fleet.labels" . | nindent 4 }}
spec:
  podSelector:
    matchLabels:
      {{- include "fleet.selector" . | nindent 6 }}
  policyTypes: [Ingress]
  ingress:
    - from:
        {{- $root := .root }}
        {{- range .from }}
        - podSelector:
            matchLabels:
              {{- include "fleet.selector" (dict "root" $root "part" .) | nindent 14 }}
        {{- end }}
{{- end }}

{{- define "fleet.volume" -}}
- metadata:
    name: data
  spec:
    accessModes: [ReadWriteOnce]
    {{- with .storageClass }}
    storageClassName: {{ . }}
    {{- end }}
    resources:
      requests:
        storage: {{ .storage }}
{{- end }}
