#!/bin/sh
# A rank on AMD GPUs: what Slurm shows (ROCR_VISIBLE_DEVICES) counts, and renumbers the rest.
# Usage: rocm.sh PROGRAM [ARGUMENT...]
set -u
variable=ROCR_VISIBLE_DEVICES
seen=${ROCR_VISIBLE_DEVICES:-${HIP_VISIBLE_DEVICES:-${CUDA_VISIBLE_DEVICES:-}}}
name=cuda:0
case $0 in */*) here=${0%/*} ;; *) here=. ;; esac
# shellcheck source=launch/rank/place.sh
. "$here/place.sh"
