#!/bin/sh
# Run the everyday suite beside busy processes and in random orders: load_runs.sh PYTHON [PYTEST-ARGUMENTS...]
# LOADED (20) runs beside BUSY (8) busy loops, then SHUFFLED (5) runs in random order. Ends with 1 if any run failed.
set -eu
python=$1
shift
loaded=${LOADED:-20} shuffled=${SHUFFLED:-5} busy=${BUSY:-8} failed=0 loops=""

stop_loops() {
    for loop in $loops; do kill "$loop" 2>/dev/null || true; done
    loops=""
}
trap stop_loops EXIT INT TERM

run() {
    echo "== $*"
    shift
    "$python" -m pytest -q -n auto --dist loadfile -m "not slow and not gpu" "$@" || failed=$((failed + 1))
}

for _ in $(seq "$busy"); do
    "$python" -c "while True: pass" &
    loops="$loops $!"
done
number=0
while [ "$number" -lt "$loaded" ]; do
    number=$((number + 1))
    run "run $number of $loaded beside $busy busy loops" "$@"
done
stop_loops
number=0
while [ "$number" -lt "$shuffled" ]; do
    number=$((number + 1))
    run "run $number of $shuffled in random order" --random-order --random-order-seed="$number" "$@"
done
echo "$failed of $((loaded + shuffled)) runs failed"
[ "$failed" -eq 0 ]
