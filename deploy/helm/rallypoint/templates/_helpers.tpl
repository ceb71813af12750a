{{/* The name of all objects: the release's name with the chart's name in it, unless a value gives another one. */}}
{{- define "rallypoint.fullname" -}}
{{- $name := .Values.nameOverride | default "rallypoint" }}
{{- if .Values.fullnameOverride }}{{ .Values.fullnameOverride }}{{ else if contains $name .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" (.Release.Name | trunc (sub 49 (len $name) | int) | trimSuffix "-") $name }}{{ end }}
{{- end }}

{{- define "rallypoint.selectorLabels" -}}
app.kubernetes.io/name: rallypoint
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "rallypoint.labels" -}}
{{ include "rallypoint.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "rallypoint.image" -}}
{{- with .Values.image }}{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}{{ end }}
{{- end }}

{{/* Settings of a pod that both modes have: where it runs, and as what. */}}
{{- define "rallypoint.pod" -}}
enableServiceLinks: false
{{- with .Values.serviceAccountName }}
serviceAccountName: {{ . }}
{{- end }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.topologySpreadConstraints }}
topologySpreadConstraints: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* What the values add to the container of the sidecar. */}}
{{- define "rallypoint.extra" -}}
{{- with .Values.envFrom }}
envFrom: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.extraVolumeMounts }}
volumeMounts: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* How Prometheus scrapes, in both modes. */}}
{{- define "rallypoint.scrape" -}}
path: /metrics
{{- with .Values.serviceMonitor }}
interval: {{ .interval }}
{{- with .scheme | default (ternary "https" "" (and (ne $.Values.tls.existingSecret "") (eq $.Values.mode "standalone"))) }}
scheme: {{ . }}
{{- end }}
{{- if .tlsConfig }}
tlsConfig: {{- toYaml .tlsConfig | nindent 2 }}
{{- else if and $.Values.tls.existingSecret (eq $.Values.mode "standalone") }}
tlsConfig:
  ca: {secret: {name: {{ $.Values.tls.existingSecret }}, key: ca.crt}}
  serverName: {{ include "rallypoint.fullname" $ }}
{{- end }}
{{- with .relabelings }}
relabelings: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .metricRelabelings }}
metricRelabelings: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}

{{- define "rallypoint.containerSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
readOnlyRootFilesystem: true
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "rallypoint.serveArgs" -}}
- --listen={{ if and .Values.auth.relaysOnly (eq .Values.mode "standalone") }}none{{ else }}[::]:{{ .Values.ports.store }}{{ end }}
- --admin=[::]:{{ .Values.ports.admin }}
- --store-ports={{ .Values.ports.runs.first }}-{{ .Values.ports.runs.last }}
{{- range .Values.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end }}

{{/*
The store as a native sidecar, for a pod template of your own chart. Make it the first entry of initContainers in every pod of an
Indexed Job or a StatefulSet. In the pod, also set enableServiceLinks: false and terminationGracePeriodSeconds: 660.
With this chart as a dependency: include "rallypoint.sidecar" .Subcharts.rallypoint | nindent 8
*/}}
{{- define "rallypoint.sidecar" -}}
- name: rallypoint
  image: {{ include "rallypoint.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  restartPolicy: Always
  args:
    - serve
    - --only-on-index=0
    - --drain={{ .Values.drainSeconds | default 600 }}s
    {{- include "rallypoint.serveArgs" . | nindent 4 }}
  env:
    # For a StatefulSet; an Indexed Job sets JOB_COMPLETION_INDEX.
    - name: RALLYPOINT_POD_INDEX
      valueFrom: {fieldRef: {fieldPath: "metadata.labels['apps.kubernetes.io/pod-index']"}}
    {{- with .Values.extraEnv }}{{ toYaml . | nindent 4 }}{{ end }}
  {{- with include "rallypoint.extra" . }}{{ . | nindent 2 }}{{ end }}
  ports:
    - {name: tcpstore, containerPort: {{ .Values.ports.store }}}
    - {name: rallypoint-http, containerPort: {{ .Values.ports.admin }}}
  startupProbe:
    httpGet: {path: /readyz, port: rallypoint-http}
    periodSeconds: 1
    failureThreshold: 60
  resources: {{- toYaml .Values.resources | nindent 4 }}
  securityContext: {{- include "rallypoint.containerSecurity" . | nindent 4 }}
{{- end }}

{{/* What certificates and tokens add to the flags of a standalone server. */}}
{{- define "rallypoint.guardArgs" -}}
{{- if .Values.tls.existingSecret }}
- --tls-cert=/run/rallypoint/tls/tls.crt
- --tls-key=/run/rallypoint/tls/tls.key
{{- with .Values.tls.clientCA }}
- --tls-client-ca=/run/rallypoint/tls/{{ . }}
{{- end }}
{{- end }}
{{- if .Values.auth.existingSecret }}
- --token-file=/run/rallypoint/auth/tokens
{{- if .Values.auth.requireToken }}
- --require-token
{{- end }}
{{- end }}
{{- if and .Values.serviceMonitor.enabled (or .Values.tls.clientCA .Values.auth.existingSecret) }}
- --open-metrics
{{- end }}
{{- end }}

{{/* The volumes of a relay with certificates or a token: for `volumes` of the pod that includes rallypoint.relay. */}}
{{- define "rallypoint.relayVolumes" -}}
{{- with .Values.relay.tlsSecret }}
- {name: rallypoint-tls, secret: {secretName: {{ . }}}}
{{- end }}
{{- with .Values.relay.tokenSecret }}
- {name: rallypoint-auth, secret: {secretName: {{ . }}}}
{{- end }}
{{- end }}

{{/*
A relay as a native sidecar, in front of a standalone server, for a pod template of your own chart. Put it into initContainers,
before those that use the store. The job's endpoint is then 127.0.0.1:29500. If relay.enabled is false, this gives nothing.
With this chart as a dependency: include "rallypoint.relay" .Subcharts.rallypoint | nindent 8
*/}}
{{- define "rallypoint.relay" -}}
{{- if .Values.relay.enabled }}
- name: relay
  image: {{ include "rallypoint.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  restartPolicy: Always
  args:
    - relay
    - --server={{ .Values.relay.server | default (printf "%s:%v" (include "rallypoint.fullname" .) .Values.ports.admin) }}
  env:
    - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
    {{- if .Values.relay.tlsSecret }}
    - {name: RALLYPOINT_TLS_CA, value: /run/rallypoint/tls/ca.crt}
    {{- if .Values.relay.tlsClientCertificate }}
    - {name: RALLYPOINT_TLS_CLIENT_CERT, value: /run/rallypoint/tls/tls.crt}
    - {name: RALLYPOINT_TLS_CLIENT_KEY, value: /run/rallypoint/tls/tls.key}
    {{- end }}
    {{- end }}
    {{- if .Values.relay.tokenSecret }}
    - {name: RALLYPOINT_TOKEN_FILE, value: /run/rallypoint/auth/token}
    {{- end }}
  {{- if or .Values.relay.tlsSecret .Values.relay.tokenSecret }}
  volumeMounts:
    {{- if .Values.relay.tlsSecret }}
    - {name: rallypoint-tls, mountPath: /run/rallypoint/tls, readOnly: true}
    {{- end }}
    {{- if .Values.relay.tokenSecret }}
    - {name: rallypoint-auth, mountPath: /run/rallypoint/auth, readOnly: true}
    {{- end }}
  {{- end }}
  startupProbe:
    exec: {command: [rallypoint, health]}
    periodSeconds: 1
    failureThreshold: 600
  resources: {{- toYaml .Values.relay.resources | nindent 4 }}
  securityContext: {{- include "rallypoint.containerSecurity" . | nindent 4 }}
{{- end }}
{{- end }}

{{/* Whether the journal is in an etcd. */}}
{{- define "rallypoint.etcd" -}}
{{- if .Values.etcd.endpoints }}{{ if .Values.journal.enabled }}{{ fail "journal.enabled is for a journal on a volume, and etcd.endpoints for one in an etcd: set one of them" }}{{ end }}yes{{ else if gt (int .Values.replicaCount) 1 }}{{ fail "replicaCount above 1 needs etcd.endpoints: pods without it would be stores of their own" }}{{ end }}
{{- end }}

{{/* The volumes of the server's own flags, and where they are mounted. */}}
{{- define "rallypoint.volumes" -}}
{{- if .Values.journal.enabled }}
- name: journal
  persistentVolumeClaim: {claimName: {{ include "rallypoint.fullname" . }}-journal}
{{- end }}
{{- with .Values.tls.existingSecret }}
- {name: tls, secret: {secretName: {{ . }}}}
{{- end }}
{{- with .Values.auth.existingSecret }}
- {name: auth, secret: {secretName: {{ . }}}}
{{- end }}
{{- if and (include "rallypoint.etcd" .) .Values.etcd.tlsSecret }}
- name: etcd-tls
  secret: {secretName: {{ .Values.etcd.tlsSecret }}}
{{- end }}
{{- if and (include "rallypoint.etcd" .) .Values.etcd.passwordSecret }}
- name: etcd-password
  secret: {secretName: {{ .Values.etcd.passwordSecret }}}
{{- end }}
{{- end }}

{{- define "rallypoint.mounts" -}}
{{- if .Values.journal.enabled }}
- {name: journal, mountPath: /data}
{{- end }}
{{- if .Values.tls.existingSecret }}
- {name: tls, mountPath: /run/rallypoint/tls, readOnly: true}
{{- end }}
{{- if .Values.auth.existingSecret }}
- {name: auth, mountPath: /run/rallypoint/auth, readOnly: true}
{{- end }}
{{- if and (include "rallypoint.etcd" .) .Values.etcd.tlsSecret }}
- {name: etcd-tls, mountPath: /etcd-tls, readOnly: true}
{{- end }}
{{- if and (include "rallypoint.etcd" .) .Values.etcd.passwordSecret }}
- {name: etcd-password, mountPath: /etcd-password, readOnly: true}
{{- end }}
{{- end }}
