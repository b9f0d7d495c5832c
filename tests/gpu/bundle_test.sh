#!/usr/bin/env bash
# bundle_test.sh BUILD HAS_CUDA_BACKEND: makes the bundle and trains with it in a root that holds nothing but the bundle, the C
# library, a text, /proc, /dev/null and /tmp. Everything runs in mount and process namespaces that end with it.
set -euo pipefail
build=$(readlink -f "$1")
have_cuda=$2
source_root=$(cd "$(dirname "$(readlink -f "$0")")/../.." && pwd)

skip() { echo "skipped: $*"; exit 77; }
[ "$(id -u)" = 0 ] || skip "only root may change its root"
for tool in chroot unshare mount patchelf redis-server; do
  command -v "$tool" >/dev/null || skip "no $tool here"
done
unshare --mount --pid --fork true 2>/dev/null || skip "no namespaces here"

scratch=$(mktemp -d "${TMPDIR:-/tmp}/holdfast-bundle-test-XXXXXX")
trap 'rm -rf "$scratch"' EXIT
failures=0
complain() { echo "FAILED: $*"; failures=$((failures + 1)); }

"$source_root/cmake/bundle.sh" "$build" "$scratch/made"
root=$scratch/root
mkdir -p "$root"/{proc,dev,tmp,lib64} "$root/moved to here"
# As it is carried: out of the one file, and somewhere else.
tar -C "$root/moved to here" -xzf "$scratch/made.tar.gz"
rm -rf "$scratch/made"
bundle="/moved to here/made"

# The C library, as its loader wants it.
loader=$(readlink -f /lib64/ld-linux-x86-64.so.2)
cp -L /lib64/ld-linux-x86-64.so.2 "$root/lib64/"
folder=$(dirname "$loader")
mkdir -p "$root$folder"
for name in libc.so.6 libm.so.6 libpthread.so.0 libdl.so.2 librt.so.1 libresolv.so.2 libmvec.so.1; do
  [ ! -e "$folder/$name" ] || cp -L "$folder/$name" "$root$folder/"
done
: >"$root/dev/null"
for i in $(seq 1 4000); do echo "the run goes on whatever dies, line $i"; done >"$root/text.txt"

# inside COMMAND...: at most 120 s, without our environment; its output is in $scratch/output.
inside() {
  local status=0
  timeout -k 5 120 unshare --mount --pid --fork --kill-child bash -c '
    root=$1 change_root=$2
    shift 2
    mount -t proc proc "$root/proc"
    mount --bind /dev/null "$root/dev/null"
    exec env -i HOME=/ TMPDIR=/tmp PATH=/nowhere "$change_root" "$root" "$@"' - "$root" "$(command -v chroot)" "$@" >"$scratch/output" 2>&1 || status=$?
  return $status
}
# expect CODE TEXT WHAT COMMAND...
expect() {
  local code=$1 text=$2 what=$3 status=0
  shift 3
  inside "$@" || status=$?
  if [ "$status" = "$code" ] && grep -qF -- "$text" "$scratch/output"; then
    echo "ok: $what: $(grep -F -m 1 -- "$text" "$scratch/output")"
  else
    complain "$what: exit code $status instead of $code, or no \"$text\":"
    tail -20 "$scratch/output"
  fi
}
train=("$bundle/bin/holdfast" run --data /text.txt --layers 1 --embed 32 --heads 2 --context 16 --steps 20 --checkpoint-every 10)
if [ "$have_cuda" = ON ]; then reason="NVIDIA driver"; else reason="built without CUDA"; fi

expect 0 "bad usage or configuration" "the program starts" "$bundle/bin/holdfast" --help
expect 0 "step 20" "it trains on the CPU, two workers and its own Redis" "${train[@]}" --dir /tmp/cpu --device cpu --workers 2
expect 2 "$reason" "--device cuda is refused" "${train[@]}" --dir /tmp/cuda --device cuda
expect 0 "step 20" "--device auto falls back to the CPU" "${train[@]}" --dir /tmp/auto --device auto --workers 1
if [ "$have_cuda" = ON ] && ! grep -q "device auto: the CPU" "$scratch/output"; then
  complain "--device auto does not say that it took the CPU"
fi
expect 1 "$reason" "the GPU check says what is missing" "$bundle/bin/gpu_check" device
# The other way round: with one of its libraries gone it must not start, or the root is not empty.
rm "$root$bundle"/lib/librocksdb*
expect 127 "librocksdb" "without one of its libraries it does not start" "$bundle/bin/holdfast" --help

if grep -q " $scratch" /proc/self/mounts; then complain "something is still mounted"; fi
[ "$failures" = 0 ] || exit 1
echo "the bundle runs in an empty root"
