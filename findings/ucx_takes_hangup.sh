#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# UCX 1.13.1 (Debian libucx0 1.13.1-1): loading the library ends that a program ignores SIGHUP.
#
# Expected: a library for messages leaves the signals of its program alone, or asks for those of errors
#     (SIGSEGV) where it is used; a signal that nohup has ignored stays ignored.
# Seen: the constructor of libucs puts a handler on SIGHUP, its signal for printing debug information,
#     before main() and without asking what was there. UCX_DEBUG_SIGNO=SIGUSR2 moves it, and takes SIGUSR2
#     instead. Nothing of UCX needs to be called.
# Consequence: a program that stops cleanly at SIGHUP "unless it is ignored", as the rule is, finds a
#     handler under nohup, and stops when its terminal is closed. Open MPI 5 of Debian 13 links to UCX, so
#     this happens to every program that could start ranks; that of Debian 12 loads it in MPI_Init.
# moegrad reads which signals are ignored before libraries are set up, and ignores them again.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
cd "$folder"
apt-get -qq download libucx0=1.13.1-1 2>apt.log || { cat apt.log; exit 1; }
dpkg -x libucx0_*.deb .
libraries="$folder/usr/lib/$(gcc -print-multiarch)"

cat >hangup.c <<'C'
#include <signal.h>
#include <stdio.h>

static const char* state(int number) {
  struct sigaction action;
  sigaction(number, NULL, &action);
  return action.sa_handler == SIG_IGN ? "ignored" : action.sa_handler == SIG_DFL ? "default" : "taken";
}

int main(void) {
  printf("SIGHUP %s, SIGUSR2 %s\n", state(SIGHUP), state(SIGUSR2));
  return 0;
}
C
gcc hangup.c -o hangup
{
  echo "alone: $(nohup ./hangup 2>/dev/null)"
  gcc hangup.c -o hangup -Wl,--no-as-needed -L "$libraries" -l:libucs.so.0 -Wl,-rpath-link,"$libraries"
  export LD_LIBRARY_PATH="$libraries"
  echo "linked: $(nohup ./hangup 2>/dev/null)"
  echo "linked, UCX_DEBUG_SIGNO=SIGUSR2: $(UCX_DEBUG_SIGNO=SIGUSR2 nohup ./hangup 2>/dev/null)"
} | tee seen

diff - seen <<'TEXT' && echo "as recorded"
alone: SIGHUP ignored, SIGUSR2 default
linked: SIGHUP taken, SIGUSR2 default
linked, UCX_DEBUG_SIGNO=SIGUSR2: SIGHUP ignored, SIGUSR2 taken
TEXT
