#!/usr/bin/env bash
# check_test.sh BUILD: the GPU check on the emulated device: whole, and with parts of it that crash, stand or are wrong.
set -uo pipefail
build=$(readlink -f "$1")
check=$(dirname "$(readlink -f "$0")")/check.sh
scratch=$(mktemp -d "${TMPDIR:-/tmp}/holdfast-check-test-XXXXXX") || exit 1
trap 'rm -rf "$scratch"' EXIT
mkdir "$scratch/tmp"
export TMPDIR=$scratch/tmp
failures=0
complain() { echo "FAILED: $*"; cat "$scratch/output"; failures=$((failures + 1)); }

# run CODE ARGUMENT...: the table and what it said are in output, the Markdown in table.md.
run() {
  local want=$1 code=0
  shift
  "$check" --build "$build" --emulated --out "$scratch/table.md" "$@" >"$scratch/output" 2>&1 || code=$?
  [ "$code" = "$want" ] || complain "check.sh $*: exit code $code instead of $want"
}
has() { grep -qE "$1" "$scratch/output" || complain "no line like: $1"; }

run 0
for row in 'ok +the GPU' 'ok +kernels: CudaFixed\.' 'measured +bandwidth: AdamW ' 'measured +product: head, dW' \
           'ok +products against sums' 'measured +training: .*tokens/s' 'ok +two runs' 'ok +the units of a step reversed' \
           'ok +as two halves' 'ok +the probe' 'ok +NCCL, one rank: finalise' 'ok +NCCL, one rank: abort' \
           'ok +NCCL: a member that never comes' 'ok +kill -9 of the worker' 'ok +kill -9 of everything' \
           'skipped +compute-sanitizer'; do
  has "$row"
done
if grep -q '^FAILED' "$scratch/output"; then complain "a row failed"; fi
grep -q '^| product: qkv, forward |' "$scratch/table.md" || complain "the Markdown has no table"
grep -q '^| together |' "$scratch/table.md" || complain "the Markdown has no profile"

# A part that dies is named by what it was doing, and the next one runs.
HOLDFAST_EMU_FAULT="nccl.init.kill" run 1 --only nccl,probe
has 'FAILED +nccl: NCCL, one rank: init +died of signal 9'
has 'ok +the probe'
# One that stands is ended in time.
HOLDFAST_EMU_FAULT="cuda.launch.hang:5" run 1 --only bandwidth,absent-peer --longest 8
has 'FAILED +bandwidth: layer norm forward'
has 'ok +NCCL: a member that never comes'
# One that ends with an error of its own says which.
HOLDFAST_EMU_FAULT="nccl.collective.error" run 1 --only nccl
has 'FAILED +NCCL, one rank: '
# Without a driver there is one reason, and nothing else is tried.
HOLDFAST_EMU_DRIVER=0 run 1
has 'FAILED +device: .*no NVIDIA driver'
has 'skipped +all other parts'

[ -z "$(ls -A "$TMPDIR")" ] || complain "left in TMPDIR: $(ls "$TMPDIR")"
[ "$failures" = 0 ] && echo "the check finds, bounds and names what fails"
