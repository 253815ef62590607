#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What mpirun calls in place of ssh: runs a command on the host of the given address, which is the
# network namespace that hosts.py has made for it, under that host's name.
#
# usage: agent.sh [-OPTION...] ADDRESS COMMAND...
while [[ $1 == -* ]]; do shift; done
host="${MOEGRAD_TEST_HOSTS}${1##*.}"
shift
exec ip netns exec "$host" unshare --uts bash -c 'hostname "$0"; eval "$*"' "$host" "$@"
