{{/* Name of everything that belongs to this release's operator. */}}
{{- define "octavo.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- printf "%s-operator" .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s-operator" .Release.Name $name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "octavo.selectorLabels" -}}
app.kubernetes.io/name: octavo-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "octavo.labels" -}}
{{ include "octavo.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: octavo
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "octavo.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "octavo.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- required "serviceAccount.name must be set when serviceAccount.create is false" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* Registry in front of a repository, where one is set. */}}
{{- define "octavo.prefix" -}}
{{- with .Values.imageRegistry }}{{ trimSuffix "/" . }}/{{ end -}}
{{- end -}}

{{- define "octavo.image" -}}
{{- $repository := printf "%s%s" (include "octavo.prefix" .) .Values.image.repository -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" $repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" $repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{/* The catalogue as the operator reads it. */}}
{{- define "octavo.catalogue" -}}
{{- $prefix := include "octavo.prefix" . -}}
{{- $images := list -}}
{{- range .Values.serverImages -}}
{{- $images = append $images (merge (dict "image" (printf "%s%s" $prefix .image)) .) -}}
{{- end -}}
images:
{{ toYaml $images }}
{{- end -}}

{{/* Priority class of calibrations; empty where the chart makes nothing outside of namespaces and none is named. */}}
{{- define "octavo.calibrationPriority" -}}
{{- $class := .Values.calibration.priorityClass }}
{{- if $class.name }}
{{- $class.name }}
{{- else if and (ne .Values.calibration.where "Off") (or (not .Values.watchNamespaces) .Values.nodes.access) }}
{{- printf "%s-calibration" (include "octavo.fullname" .) }}
{{- end }}
{{- end }}
