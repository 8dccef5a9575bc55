#!/usr/bin/env bash
# All that has to be seen on a GPU, in one call of under nine minutes that needs no network: the tests of kernels, CUDA
# graphs and copies, the engine beside what the device can do, and a latency lane beside a flood.
#
#   make gpu-wheels                  # elsewhere, with a network: what is missing beside torch, transformers and triton
#   benchmarks/gpu/check.sh [DIR]    # writes DIR/check.json and the logs
set -uo pipefail
cd "$(dirname "$0")/../.."
out=${1:-/tmp/fairlane-gpu}
mkdir -p "$out"
export PYTHONUNBUFFERED=1
if compgen -G 'benchmarks/gpu/wheels/*.whl' >/dev/null; then
    python3 -m pip install --quiet --no-index --no-deps --no-compile --upgrade --target "$out/site" benchmarks/gpu/wheels/*.whl || exit 2
    export PYTHONPATH="$out/site:$PWD${PYTHONPATH:+:$PYTHONPATH}" PATH="$out/site/bin:$PATH"
fi
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader

# name, limit in seconds, command
part() {
    local name=$1 limit_s=$2 began=$SECONDS
    shift 2
    timeout --kill-after 5 "$limit_s" "$@" >"$out/$name.log" 2>&1
    local status=$?
    tail -n 40 "$out/$name.log"
    echo "$name: exit status $status after $((SECONDS - began)) s"
    echo "{\"part\": \"$name\", \"status\": $status, \"seconds\": $((SECONDS - began))}" >>"$out/parts.jsonl"
}

rm -f "$out"/parts.jsonl "$out"/*.json
part tests 150 python3 -m pytest -q -p no:cacheprovider --timeout 120 \
    tests/worker/attention tests/worker/model/test_cuda_graphs.py tests/worker/kv/test_transfer.py
part engine 210 python3 -m benchmarks.gpu --quick --json "$out/engine.json"
part serving 150 python3 -m benchmarks.gpu.serving --json "$out/serving.json"
python3 - "$out" <<'END'
import json, pathlib, sys

out = pathlib.Path(sys.argv[1])
parts = [json.loads(line) for line in (out / "parts.jsonl").read_text().splitlines()]
lines = [line for name in ("engine", "serving") if (out / f"{name}.json").exists() for line in json.loads((out / f"{name}.json").read_text())]
(out / "check.json").write_text(json.dumps({"parts": parts, "lines": lines}, indent=1) + "\n")
sys.exit(any(part["status"] for part in parts))
END
