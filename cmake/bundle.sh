#!/usr/bin/env bash
# Makes a folder that runs on any x86-64 Linux with the C library of this build or a newer one, and one file of it to
# carry. `./dev bundle` calls it; it needs ldd, patchelf, strip.
#   bundle.sh BUILD OUT        OUT/bin: programs, OUT/lib: their libraries, OUT/check.sh; and OUT.tar.gz
# The bound of 60 MiB is that of the file; unpacked, oneDNN alone is 38 MiB.
# Programs and libraries find each other by $ORIGIN, so the folder may be moved. As RPATH, not RUNPATH: a
# LD_LIBRARY_PATH that is set for the CUDA libraries does not replace ours by another version. What belongs to the
# target's own loader (the C library) and to its driver stays out; cuBLASLt and NCCL are looked for when they are needed.
set -euo pipefail
here=$(cd "$(dirname "$(readlink -f "$0")")/.." && pwd)
build=$(readlink -f "$1")
out=$2
limit_mib=60

fail() { printf 'bundle: %s\n' "$*" >&2; exit 1; }
for tool in ldd patchelf strip tar gzip; do
  command -v "$tool" >/dev/null || fail "$tool is needed (Debian: apt-get install patchelf binutils)"
done
redis=$(command -v redis-server) || fail "redis-server is needed (Debian: apt-get install redis-server)"
[ ! -e "$out" ] || [ -f "$out/lib/.holdfast-bundle" ] || fail "$out exists and is no bundle: name another folder with --out"

# Parts of the C library: they must be those of the target's loader.
of_the_c_library() {
  case "$1" in
    ld-linux*|linux-vdso*|libc.so.*|libm.so.*|libpthread.so.*|libdl.so.*|librt.so.*|libresolv.so.*|libutil.so.*|libanl.so.*|libnss_*|libmvec.so.*) ;;
    *) return 1 ;;
  esac
}

# libraries_of FILE: "name path" for each library that its loader would take, the C library's left out.
libraries_of() {
  local name path
  ldd "$1" | awk '$2 == "=>" {print $1, $3}' | while read -r name path; do
    of_the_c_library "$name" && continue
    [ "$path" != not ] || fail "$1 needs $name, which is not found"
    echo "$name $path"
  done
}

rm -rf "$out" "$out.tar.gz"
mkdir -p "$out/bin" "$out/lib"
out=$(readlink -f "$out")
: >"$out/lib/.holdfast-bundle"

shopt -s nullglob  # the kernels' tests are there where the CUDA toolkit was
programs=("$build/holdfast" "$build/tests/gpu/gpu_check" "$build"/tests/gpu/gpu_*_test)
for program in "${programs[@]}"; do
  [ -x "$program" ] || fail "$program is not built"
  cp -L "$program" "$out/bin/"
done
cp -L "$redis" "$out/bin/redis-server"
cp "$here/tests/gpu/check.sh" "$out/"
cp "$here/cmake/bundle.md" "$out/README.md"

for program in "$out"/bin/*; do
  libraries_of "$program"
done | sort -u >"$out/lib/.list"
while read -r name path; do
  case "$name" in
    libcuda.so*|libcublas*|libnccl*) fail "$name is linked, and must be looked for when it is needed" ;;
  esac
  cp -L "$path" "$out/lib/$name"
  chmod 644 "$out/lib/$name"
done <"$out/lib/.list"

# Whose they are.
if command -v dpkg-query >/dev/null; then
  mkdir -p "$out/licenses"
  while read -r _ path; do echo "*/$(basename "$(readlink -f "$path")")"; done <"$out/lib/.list" |
    xargs -r dpkg-query -S 2>/dev/null | cut -d: -f1 | sort -u | { cat; echo redis-server; } |
    while read -r package; do
      for name in "$package" "${package%-server}-tools"; do
        [ ! -f "/usr/share/doc/$name/copyright" ] || cp -L "/usr/share/doc/$name/copyright" "$out/licenses/$package"
      done
    done
fi
rm "$out/lib/.list"

for file in "$out"/bin/* "$out"/lib/*.so*; do strip --strip-unneeded "$file"; done
for file in "$out"/lib/*.so*; do patchelf --force-rpath --set-rpath '$ORIGIN' "$file"; done
for file in "$out"/bin/*; do patchelf --force-rpath --set-rpath '$ORIGIN/../lib' "$file"; done

# Held against what it promises: nothing but the C library comes from elsewhere.
for file in "$out"/bin/* "$out"/lib/*.so*; do
  libraries_of "$file" | while read -r name path; do
    case "$(readlink -f "$path")" in
      "$out"/lib/*) ;;
      *) fail "$file still takes $name from $path" ;;
    esac
  done
done
newest=$(for file in "$out"/bin/* "$out"/lib/*.so*; do objdump -T "$file" 2>/dev/null; done |
         grep -o 'GLIBC_2\.[0-9]*' | sort -uV | tail -1)

tar -C "$(dirname "$out")" --owner=0 --group=0 --sort=name -czf "$out.tar.gz" "$(basename "$out")"
folder_mib=$(du -sm --apparent-size "$out" | cut -f1)
bytes=$(stat -c %s "$out.tar.gz")
printf 'bundle: %s (%s MiB), and to carry: %s (%d.%d MiB); needs %s or newer\n' "$out" "$folder_mib" "$out.tar.gz" \
  $((bytes >> 20)) $(((bytes & 1048575) * 10 >> 20)) "${newest:-a C library}"
[ "$bytes" -le $((limit_mib << 20)) ] || fail "$out.tar.gz is larger than $limit_mib MiB"
