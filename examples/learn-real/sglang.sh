#!/bin/bash
# Trains the model of this folder with AReaL, sampled by SGLang on a GPU.
#
#   examples/learn-real/sglang.sh MODEL WEIGHTS [STEPS]
#
# MODEL is the folder of a fine-tuned model (tiny.py tune), WEIGHTS an empty folder. Needs a GPU, SGLang, AReaL and the package `floe` in the
# Python environment, and `floe` on the PATH. Replies that an update reaches are
# aborted and continued by floe, because SGLang cannot flush its cache while it holds frozen replies.
set -euo pipefail

here=$(dirname "$(realpath "$0")")
model=$(realpath "${1:?the folder of the model is missing}")
weights=$(realpath "${2:?the folder of the weights is missing}")
steps=${3:-40}
sglang_port=30000
floe_port=8080

missing=()
nvidia-smi -L > /dev/null 2>&1 || missing+=("a GPU: nvidia-smi finds none")
command -v floe > /dev/null || missing+=("floe: npm install --global floe")
for module in sglang areal floe; do
  python3 -c "import importlib.util, sys; sys.exit(importlib.util.find_spec('$module') is None)" || missing+=("the Python package $module")
done
if ((${#missing[@]})); then
  echo "this example cannot run here; it needs:" >&2
  printf '  %s\n' "${missing[@]}" >&2
  exit 2
fi

python3 -m sglang.launch_server --model-path "$model" --served-model-name tiny --host 127.0.0.1 --port $sglang_port --dtype float32 \
  --context-length 1024 --tool-call-parser qwen25 &
server=$!
trap 'kill $server ${floe:-} 2> /dev/null' EXIT
until curl -sf http://127.0.0.1:$sglang_port/health > /dev/null; do
  kill -0 $server || exit 1
  sleep 2
done

export FLOE_HOME=$weights/floe
floe up --engine http://127.0.0.1:$sglang_port --engine-kind sglang --port $floe_port --dir "$FLOE_HOME/data" &
floe=$!
until curl -sf http://127.0.0.1:$floe_port/health > /dev/null; do
  kill -0 $floe || exit 1
  sleep 1
done

FLOE_URL=http://127.0.0.1:$floe_port FLOE_TOKEN=$(cat "$FLOE_HOME/control-token") \
  python3 "$here/learn_areal.py" --model "$model" --weights "$weights" --steps "$steps" --engine sglang
