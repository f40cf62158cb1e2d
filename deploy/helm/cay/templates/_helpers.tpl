{{- define "cay.labels" -}}
app.kubernetes.io/name: cay
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* The settings of a member, but for its roles. */}}
{{- define "cay.env" -}}
- name: HOST_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
- {name: CAY_CLUSTER_ADDRESS, value: "$(HOST_IP):7071"}
- {name: CAY_LISTEN, value: "0.0.0.0:7070"}
{{- range $name, $value := .Values.settings }}
- {name: {{ $name }}, value: {{ $value | quote }}}
{{- end }}
{{- end -}}

{{/* A member joins with the token of its name before its first start. */}}
{{- define "cay.join" -}}
command: [sh, -ec]
args:
  - |
    [ -e "$CAY_DATA_DIR/cluster" ] || cay cluster join < "/tokens/$MEMBER"
{{- end -}}

{{- define "cay.probes" -}}
# It renews its lease, and reaches the records.
readinessProbe:
  httpGet: {path: /health, port: client}
  periodSeconds: 5
startupProbe:
  httpGet: {path: /health, port: client}
  periodSeconds: 5
  failureThreshold: 60
{{- end -}}
