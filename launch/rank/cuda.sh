#!/bin/sh
# A rank on NVIDIA GPUs.
# Usage: cuda.sh PROGRAM [ARGUMENT...]
set -u
variable=CUDA_VISIBLE_DEVICES
seen=${CUDA_VISIBLE_DEVICES:-}
name=cuda:0
case $0 in */*) here=${0%/*} ;; *) here=. ;; esac
# shellcheck source=launch/rank/place.sh
. "$here/place.sh"
