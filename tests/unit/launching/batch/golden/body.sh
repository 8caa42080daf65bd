# Python and the package of whoever submitted; the controller brings software to the other hosts.
program=(/sw/env/bin/python -m hydragnn_hpo)

cd /home/me || exit

# From this 'run', agents and ranks know that they are in a job of a chain.
export HYDRAGNN_HPO_BATCH_JOB="${SLURM_JOB_ID:-$PBS_JOBID}"

# TERM may go to every process of the job: what keeps the chain alive ignores it.
batch() (
    trap '' TERM
    exec "${program[@]}" batch "$@"
)

# Notes that this job runs, and queues the next one behind it, however this one will end.
batch begin /lustre/me/runs/alloys --script 001.sh --jobs 16 || exit
trap - EXIT

code=75
if [ "$asked" -eq 0 ]; then
    "${program[@]}" run /lustre/me/runs/alloys/jobs/001.toml --run /lustre/me/runs/alloys </dev/null &
    running=$!
    [ "$asked" -eq 0 ] || kill -USR1 "$running" 2>/dev/null
    # A signal ends 'wait' before the program has ended: wait until none came in between.
    until
        before=$asked
        wait "$running"
        code=$?
        [ "$asked" -eq "$before" ]
    do :; done
fi

# Notes how it ended, and takes the next job back where there is nothing left to do or to gain.
batch end /lustre/me/runs/alloys --code "$code"
