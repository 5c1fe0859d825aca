{{- define "floe.name" -}}
{{- if contains "floe" .Release.Name -}}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{- else -}}{{ printf "%s-floe" (.Release.Name | trunc 35 | trimSuffix "-") }}{{- end -}}
{{- end -}}

{{- define "floe.labels" -}}
app.kubernetes.io/name: floe
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{/* Of one part: (list . "server") */}}
{{- define "floe.selector" -}}
app.kubernetes.io/name: floe
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "floe.image" -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) | quote -}}
{{- end -}}

{{- define "floe.tokenSecret" -}}
{{- .Values.auth.existingSecret | default (printf "%s-token" (include "floe.name" .)) -}}
{{- end -}}

{{- define "floe.databaseSecret" -}}
{{- .Values.database.existingSecret | default (printf "%s-database" (include "floe.name" .)) -}}
{{- end -}}

{{- define "floe.blobClaim" -}}
{{- .Values.blobs.existingClaim | default (printf "%s-blobs" (include "floe.name" .)) -}}
{{- end -}}

{{- define "floe.scheme" -}}
{{- if .Values.tls.existingSecret }}https{{ else }}http{{ end -}}
{{- end -}}

{{- define "floe.serverUrl" -}}
{{- printf "%s://%s-server:%v" (include "floe.scheme" .) (include "floe.name" .) .Values.server.port -}}
{{- end -}}

{{/* What every container of floe is held to. */}}
{{- define "floe.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: { drop: [ALL] }
{{- end -}}

{{/* How floe's commands reach the server. */}}
{{- define "floe.clientArgs" -}}
- --token-file
- /secrets/token/token
{{- if .Values.tls.existingSecret }}
- --ca
- /secrets/tls/ca.crt
{{- end }}
{{- end -}}

{{- define "floe.clientMounts" -}}
- { name: token, mountPath: /secrets/token, readOnly: true }
{{- if .Values.tls.existingSecret }}
- { name: tls, mountPath: /secrets/tls, readOnly: true }
{{- end }}
{{- end -}}

{{/*
Of a client with one of the tokens: (list . "node-token"). Clients get the authority only, never the server's key, and nodes a
token that may do no more than nodes do.
*/}}
{{- define "floe.clientVolumes" -}}
{{- $all := index . 0 -}}
- name: token
  secret:
    secretName: {{ include "floe.tokenSecret" $all }}
    defaultMode: 0440
    items: [{ key: {{ index . 1 }}, path: token }]
{{- if $all.Values.tls.existingSecret }}
- name: tls
  secret:
    secretName: {{ $all.Values.tls.existingSecret }}
    items: [{ key: ca.crt, path: ca.crt }]
{{- end }}
{{- end -}}

{{/* Settings of one part, where it has any: (list . "server") */}}
{{- define "floe.configArgs" -}}
{{- if index (index . 0).Values.config (index . 1) -}}
- --config
- /etc/floe/config.yaml
{{- end -}}
{{- end -}}

{{- define "floe.configMount" -}}
{{- if index (index . 0).Values.config (index . 1) -}}
- { name: config, mountPath: /etc/floe, readOnly: true }
{{- end -}}
{{- end -}}

{{- define "floe.configVolume" -}}
{{- if index (index . 0).Values.config (index . 1) -}}
- name: config
  configMap: { name: {{ include "floe.name" (index . 0) }}-config }
{{- end -}}
{{- end -}}

{{/* Settings are read once, at the start: a pod whose part has changed is replaced. */}}
{{- define "floe.configChecksum" -}}
{{- with index (index . 0).Values.config (index . 1) -}}
floe/config: {{ toYaml . | sha256sum }}
{{- end -}}
{{- end -}}

{{/* Values that can never work are refused before anything is installed. */}}
{{- define "floe.check" -}}
{{- if and (not .Values.database.existingSecret) (not .Values.database.trial.enabled) -}}
{{- fail "database: name a Secret in database.existingSecret, or set database.trial.enabled for a trial" -}}
{{- end -}}
{{- if and .Values.database.existingSecret .Values.database.trial.enabled -}}
{{- fail "database: existingSecret and trial.enabled name two databases; give one" -}}
{{- end -}}
{{- $several := or (gt (int .Values.server.replicas) 1) .Values.server.autoscaling.enabled -}}
{{- if and $several (not .Values.blobs.url) (not .Values.blobs.existingClaim) (not (has "ReadWriteMany" .Values.blobs.accessModes)) -}}
{{- fail "blobs: several replicas share what they store: give blobs.url, or a volume with ReadWriteMany" -}}
{{- end -}}
{{- $names := list -}}
{{- range .Values.nodes -}}
{{- if has .name $names -}}{{- fail (printf "nodes: two roles are called %s" .name) -}}{{- end -}}
{{- $names = append $names .name -}}
{{- end -}}
{{- end -}}
