# shellcheck shell=sh disable=SC2154
# Read by the wrappers beside it: gives the rank one device and the cores near it, then becomes it.
#
# Before: $variable is the name that shows a rank its device here, $seen what the launcher said,
#         $name what torch calls the one device that is seen.
# HYDRAGNN_HPO_CORES, if set, lists the cores near device 0, 1, ...: "49-55 57-63 ...".

# Number of this rank on its host. torchrun may run inside a step of Slurm, an mpiexec too: who
# started this process itself is asked first.
if [ -n "${TORCHELASTIC_RUN_ID:-}" ]; then
    number=${LOCAL_RANK:-0}
else
    number=${OMPI_COMM_WORLD_LOCAL_RANK:-${PALS_LOCAL_RANKID:-${MPI_LOCALRANKID:-}}}
    number=${number:-${PMI_LOCAL_RANK:-${SLURM_LOCALID:-${LOCAL_RANK:-0}}}}
fi
case $number in
    '' | *[!0-9]*)
        printf '%s\n' "the launcher calls this rank '$number' on its host: that is no number." >&2
        exit 2
        ;;
esac

# One device is shown: take it. Several: each rank takes its own. None is named: all are there.
device=$number
if [ -n "$seen" ]; then
    device=$(printf '%s,\n' "$seen" | cut -d , -f "$((number + 1))")
    case $seen in *,*) ;; *) device=$seen ;; esac
fi
if [ -n "$variable" ]; then
    if [ -z "$device" ]; then
        printf '%s\n' "rank $number of this host has no device of its own among '$seen'." >&2
        exit 2
    fi
    # Two of these with numbers of the host would hide all but the first device.
    unset CUDA_VISIBLE_DEVICES HIP_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES ZE_AFFINITY_MASK
    export "$variable=$device"
    export HYDRAGNN_HPO_DEVICE="$name"
fi

# nproc counts the cores that we may use, unless these two tell it otherwise.
count() {
    env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT "$@" nproc 2>/dev/null || echo 0
}

# Bind where the launcher has not: it left us more cores than are near the device.
cores=
case $device in
    '' | *[!0-9]*) ;; # an id: we do not know where it sits
    *) cores=$(printf '%s \n' "${HYDRAGNN_HPO_CORES:-}" | cut -d ' ' -f "$((device + 1))") ;;
esac
if [ -n "$cores" ] && [ "$cores" != - ]; then
    near=$(count taskset -c "$cores")
    if [ "$near" -eq 0 ]; then
        printf '%s\n' "cores $cores near device $device are not ours: not bound." >&2
    elif [ "$(count)" -gt "$near" ]; then
        exec taskset -c "$cores" "$@"
    fi
fi
exec "$@"
