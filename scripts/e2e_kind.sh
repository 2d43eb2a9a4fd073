#!/usr/bin/env bash
# The whole of it on a kind cluster: images built here, the chart installed with them, a model that answers, and an
# uninstallation that leaves it. Wants docker with buildx, kind, helm and kubectl on PATH, and KUBECONFIG or a context
# that leads to the cluster. Works in namespace default.
#   TORCH_INDEX   address of torch's own wheels, for the image of the CPU variant
#   KIND_CLUSTER  name of the cluster (kind)
#   MANIFEST      the InferenceService to try (examples/smollm2-hub-cpu.yaml)
set -euo pipefail
cd "$(dirname "$0")/.."
: "${TORCH_INDEX:?set it to the address of torch\'s own wheels}"
version=$(cat VERSION)
manifest=${MANIFEST:-examples/smollm2-hub-cpu.yaml}
system=octavo-system
told() { echo; echo "● $*"; }

for program in docker kind helm kubectl; do
  command -v "$program" >/dev/null || { echo "e2e-kind: $program is not on PATH" >&2; exit 1; }
done

explain() {
  local code=$?
  if [ "$code" -ne 0 ]; then
    told "failed: what can be seen"
    kubectl get ois,pods,jobs --all-namespaces || true
    kubectl describe ois || true
    kubectl logs --namespace "$system" deployment/octavo-operator --tail 50 || true
  fi
  exit "$code"
}
trap explain EXIT

told "images of version $version"
docker buildx bake --load -f server_image/docker-bake.json --set "*.args.INDEX=$TORCH_INDEX" cpu operator
kind load docker-image --name "${KIND_CLUSTER:-kind}" "octavo/octavo-operator:$version" "octavo/octavo-server:$version-cpu"

told "the chart, and its own test"
helm upgrade --install octavo charts/octavo --namespace "$system" --create-namespace --wait --timeout 5m
helm test octavo --namespace "$system" --timeout 3m

told "$manifest becomes Ready"
# A CRD that was just installed is served after a moment.
kubectl wait --for=condition=Established crd/inferenceservices.serving.octavo.dev --timeout=60s
name=$(kubectl apply -f "$manifest" -o name | sed -n 's|^inferenceservice[^/]*/||p')
kubectl wait "ois/$name" --for=condition=Ready --timeout=15m
kubectl get ois "$name"

told "$name answers"
.venv/bin/octavo top --once
.venv/bin/octavo bench "$name" --requests 4 --concurrency 2 --tokens 8

told "uninstalled, and $name serves on"
helm uninstall octavo --namespace "$system" --wait
kubectl get ois "$name"
.venv/bin/octavo bench "$name" --requests 2 --concurrency 1 --tokens 8
