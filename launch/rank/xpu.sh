#!/bin/sh
# A rank on Intel GPUs; tiles are numbered through with ZE_FLAT_DEVICE_HIERARCHY=FLAT.
# Usage: xpu.sh PROGRAM [ARGUMENT...]
set -u
variable=ZE_AFFINITY_MASK
seen=${ZE_AFFINITY_MASK:-}
name=xpu:0
case $0 in */*) here=${0%/*} ;; *) here=. ;; esac
# shellcheck source=launch/rank/place.sh
. "$here/place.sh"
