#!/usr/bin/env bash
# The GPU check: kernels, products, training, NCCL and recovery on one GPU, as one table. `./dev gpu-check` builds and runs
# it; in a bundle it stands beside bin/. No network, less than 8 minutes on an H200.
#   check.sh [--build BUILD] [--out FILE.md] [--only PART[,PART]] [--cuda-libs FOLDER[:FOLDER]] [--emulated]
# Each part is a process with a time limit: one that crashes or stands is a FAILED row, and the next one runs. Exit code 1
# when a row of correctness FAILED; a missed goal of speed fails nothing. --emulated: the same on the emulated device of
# the tests, with tiny sizes, to show that the check works.
set -uo pipefail
here=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)

readonly limit_s=480

usage() { sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2; }
build='' out=gpu-check.md only='' cuda_libs='' emulated=no longest=$limit_s
while [ $# -gt 0 ]; do
  case "$1" in
    --emulated) emulated=yes; shift; continue ;;
    --build|--out|--only|--cuda-libs|--longest) [ $# -ge 2 ] || usage ;;
    *) usage ;;
  esac
  case "$1" in
    --build) build=$2 ;;
    --out) out=$2 ;;
    --only) only=,$2, ;;
    --cuda-libs) cuda_libs=$2 ;;
    --longest) longest=$2 ;;  # of one part, in seconds: for the test of this script
  esac
  shift 2
done

if [ -x "$here/bin/gpu_check" ]; then
  program=$here/bin/holdfast check=$here/bin/gpu_check kernels=$here/bin/gpu_kernels_test
else
  build=$(readlink -f "${build:-$here/../../build}")
  program=$build/holdfast check=$build/tests/gpu/gpu_check kernels=$build/tests/gpu/gpu_kernels_test
fi
arguments=()
[ -z "$cuda_libs" ] || arguments+=(--cuda-libs "$cuda_libs")
kernel_arguments=(--gtest_color=no)
if [ "$emulated" = yes ]; then
  # Of the kernels' tests some: all of them are a test of their own.
  program=$build/holdfast_emulated check=${check}_emulated kernels=$build/tests/kernels/cuda_backend_test
  kernel_arguments+=('--gtest_filter=CudaElementwise.*:CudaFixed.*:CudaOptimizer.*')
  arguments+=(--tiny)
fi
arguments+=(--program "$program")
for file in "$check" "$program"; do
  [ -x "$file" ] || { echo "check.sh: $file is not there; build it (./dev gpu-check), or name the build with --build" >&2; exit 2; }
done

scratch=$(mktemp -d "${TMPDIR:-/tmp}/holdfast-gpu-check-XXXXXX") || exit 2
trap 'rm -rf "$scratch"' EXIT
export TMPDIR=$scratch
rows=$scratch/rows
: >"$rows"
start=$SECONDS

row() { printf 'row\t%s\t%s\t%s\t%s\n' "$1" "$2" "$3" "$4" >>"$rows"; }
say() { printf '%4d s  %s\n' $((SECONDS - start)) "$*" >&2; }
last_lines() { tail -n 4 "$1" | tr '\t\n' '  ' | cut -c1-500; }

# bounded SECONDS LOG COMMAND...: within what is left of the whole. `outcome` says how it ended if it has no code.
outcome=''
bounded() {
  local seconds=$1 log=$2 left=$((limit_s - (SECONDS - start))) from=$SECONDS code=0
  shift 2
  [ "$seconds" -le "$longest" ] || seconds=$longest
  [ "$seconds" -le "$left" ] || seconds=$left
  outcome="not begun, the time is used up"
  [ "$seconds" -gt 0 ] || return 124
  # The braces: what bash says of a process that was killed is of no use.
  { timeout --kill-after=5 "$seconds" "$@" >"$log" 2>&1 </dev/null; } 2>/dev/null || code=$?
  if [ "$code" -ge 124 ] && [ $((SECONDS - from)) -ge "$seconds" ]; then
    outcome="did not end in $seconds s"
  elif [ "$code" -gt 128 ]; then
    outcome="died of signal $((code - 128))"
  else
    outcome="ended with code $code"
  fi
  return $code
}

wanted() { [ -z "$only" ] || case "$only" in *",$1,"*) ;; *) return 1 ;; esac; }

# part NAME SECONDS [COMMAND PREFIX...]: one part of gpu_check; what it has begun and not finished is named.
part() {
  local name=$1 seconds=$2 code=0 from last
  shift 2
  wanted "$name" || return 0
  say "$name"
  from=$(wc -l <"$rows")
  bounded "$seconds" "$scratch/$name.log" "$@" "$check" "$name" --rows "$rows" "${arguments[@]}" || code=$?
  [ "$code" != 0 ] || return 0
  # Code 1 with a FAILED row of its own has said it all.
  if [ "$code" = 1 ] && tail -n +$((from + 1)) "$rows" | grep -q $'^row\t.*\tFAILED$'; then return 0; fi
  last=$(tail -n +$((from + 1)) "$rows" | awk -F '\t' '$1 == "begin" {name = $2} END {print name}')
  row "$name: ${last:-start}" "$outcome: $(last_lines "$scratch/$name.log")" "" FAILED
}

# The tests of the kernels: one row for each.
kernel_tests() {
  local code=0 log=$scratch/kernels.log
  wanted kernels || return 0
  say "kernels"
  if [ ! -x "$kernels" ]; then
    row "kernels" "" "" "skipped: $kernels is not there; it is built where the CUDA toolkit is"
    return 0
  fi
  bounded 150 "$log" "$kernels" "${kernel_arguments[@]}" || code=$?
  awk -F '\t' -v OFS='\t' -v code="$code" -v outcome="$outcome" '
    /^\[ RUN      \] / {running = substr($0, 14); why = ""; next}
    /^\[       OK \] / {$0 = substr($0, 14); split($0, w, " "); print "row", "kernels: " w[1], "as the references", "", "ok"; count++; running = ""; next}
    /^\[  SKIPPED \] / {$0 = substr($0, 14); split($0, w, " "); if (running != "") print "row", "kernels: " w[1], "", "", "skipped: " why; running = ""; next}
    /^\[  FAILED  \] .* \([0-9]+ ms\)/ {$0 = substr($0, 14); split($0, w, " "); if (running != "") print "row", "kernels: " w[1], why, "", "FAILED"; running = ""; next}
    running != "" && length(why) < 300 {gsub(/\t/, " "); why = why $0 " "}
    END {if (running != "") print "row", "kernels: " running, outcome ": " why, "", "FAILED"
         else if (code != 0 && count == 0) print "row", "kernels", "no test ran: " outcome, "", "FAILED"}' "$log" >>"$rows"
}

sanitizer() {
  local tool='' folder
  wanted sanitized || return 0
  for folder in $(command -v compute-sanitizer) /usr/local/cuda/bin/compute-sanitizer /usr/local/cuda-*/bin/compute-sanitizer; do
    [ ! -x "$folder" ] || { tool=$folder; break; }
  done
  if [ "$emulated" = yes ]; then
    row "compute-sanitizer" "" "" "skipped: it needs a GPU"
  elif [ -z "$tool" ]; then
    row "compute-sanitizer" "" "" "skipped: not in PATH nor in /usr/local/cuda*/bin"
  else
    local kind code log
    for kind in memcheck racecheck; do
      say "compute-sanitizer $kind"
      code=0 log=$scratch/$kind.log
      bounded 60 "$log" "$tool" --tool "$kind" --error-exitcode 99 "$check" sanitized --rows "$scratch/sanitized" "${arguments[@]}" --tiny || code=$?
      if [ "$code" = 0 ]; then
        row "compute-sanitizer $kind, a small model" "two steps without a finding" "" ok
      elif [[ $outcome == *"not end in"* ]]; then
        row "compute-sanitizer $kind, a small model" "" "" "skipped: it $outcome"
      else
        row "compute-sanitizer $kind, a small model" "$(grep -m 3 '=========' "$log" | tr '\t\n' '  ')$outcome" "" FAILED
      fi
    done
  fi
}

# The table, for people or as Markdown.
table() {
  awk -F '\t' -v style="$1" '
    $1 == "row" {n++; for (i = 2; i <= 5; i++) {cell[n, i] = $i; if (length($i) > width[i]) width[i] = length($i)}}
    END {
      if (style == "md") {
        print "| what | result | limit or goal | verdict |"
        print "|---|---|---|---|"
        for (r = 1; r <= n; r++) {
          for (i = 2; i <= 5; i++) gsub(/\|/, "\\|", cell[r, i])
          printf "| %s | %s | %s | %s |\n", cell[r, 2], cell[r, 3], cell[r, 4], cell[r, 5]
        }
      } else {
        format = "%-9s %-" (width[2] < 60 ? width[2] : 60) "s  %s%s\n"
        for (r = 1; r <= n; r++) {
          verdict = cell[r, 5]
          if (verdict ~ /^skipped: /) {cell[r, 3] = substr(verdict, 10); verdict = "skipped"}
          printf format, verdict, cell[r, 2], cell[r, 3], cell[r, 4] == "" ? "" : "  (goal " cell[r, 4] ")"
        }
      }
    }' "$rows"
}

# What one step of one unit is made of: each operation alone, at its sizes, times how often it comes.
profile() {
  awk -F '\t' '
    $1 == "part" {n++; name[n] = $2; times[n] = $3; ms[n] = $3 * $4; each[n] = $4; all += ms[n]}
    END {
      if (n == 0) exit
      print "| part of one step of one unit | times | us each | ms | share |"
      print "|---|---|---|---|---|"
      for (done = 0; done < n; done++) {
        best = 0
        for (i = 1; i <= n; i++) if (!used[i] && (best == 0 || ms[i] > ms[best])) best = i
        used[best] = 1
        printf "| %s | %g | %.1f | %.3f | %.1f%% |\n", name[best], times[best], each[best] * 1000, ms[best], 100 * ms[best] / (all > 0 ? all : 1)
      }
      printf "| together | | | %.3f | |\n", all
    }' "$rows"
}

part device 60
if wanted device && ! grep -q $'^row\tthe GPU' "$rows"; then
  row "all other parts" "" "" "skipped: no GPU that can be used"
else
  kernel_tests
  part bandwidth 60
  part products 60
  part attention 30
  part training 90
  part sums 60
  part probe 60
  part nccl 45
  part absent-peer 30
  part resume 90
  sanitizer
fi
say "done"

{
  echo "## GPU check"
  echo
  [ "$emulated" = no ] || printf 'On the emulated device: the figures of speed say nothing of a GPU.\n\n'
  [ -n "$only" ] && printf 'Only: %s\n\n' "$(tr ',' ' ' <<<"$only")"
  echo "$(uname -sr), $((SECONDS - start)) s"
  echo
  table md
  echo
  profile
} >"$out"
echo
table text
echo
failed=$(awk -F '\t' '$1 == "row" && $5 == "FAILED"' "$rows" | wc -l)
echo "$(grep -c $'^row\t.*\tok$' "$rows") ok, $(grep -c $'^row\t.*\tmissed$' "$rows") missed, $failed FAILED, $(grep -c $'\tskipped: ' "$rows") skipped; as Markdown, with the profile of a step: $out"
[ "$failed" = 0 ]
