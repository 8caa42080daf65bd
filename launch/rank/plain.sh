#!/bin/sh
# A rank on processors alone: HYDRAGNN_HPO_CORES lists the cores of rank 0, 1, ... of a host.
# Usage: plain.sh PROGRAM [ARGUMENT...]
set -u
variable=''
seen=
name=''
case $0 in */*) here=${0%/*} ;; *) here=. ;; esac
# shellcheck source=launch/rank/place.sh
. "$here/place.sh"
