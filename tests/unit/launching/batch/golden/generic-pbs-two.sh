#!/bin/bash -l
# One batch job of a campaign, for PBS Professional or OpenPBS. 'hydragnn-hpo submit' fills it in
# and puts job.sh behind; what was submitted lies in RUN/jobs.
#PBS -N hpo-alloys
#PBS -l select=2
#PBS -l walltime=01:30:00
#PBS -A mat123
#PBS -q debug
#PBS -l place=scatter:exclhost
#PBS -k doe
# Beside this script, one file for each job.
#PBS -j oe
# The next job of the chain goes on after a loss; PBS shall not start this one again as well.
#PBS -r n

# PBS gives no early signal: the end is known from here, and when to leave checkpoints before it.
HYDRAGNN_HPO_END=$(($(date +%s) + 5400))
HYDRAGNN_HPO_END_MARGIN=300
export HYDRAGNN_HPO_END HYDRAGNN_HPO_END_MARGIN

# Told shortly before the end (USR1), or when the job is taken away (TERM), 'run' lets trials leave
# checkpoints and ends with code 75. The shell itself must not die of these signals.
asked=0
running=
drain() {
    asked=$((asked + 1))
    [ -z "$running" ] || kill -USR1 "$running" 2>/dev/null
}
trap drain USR1 TERM

# What ends before 'batch begin' is on record, too: a module, a Python or a folder that is not there.
job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
job=${job:-${SLURM_JOB_ID:-$PBS_JOBID}}
facts=/lustre/me/runs/alloys/jobs/$job
fail() {
    code=$?
    [ -e "$facts.began.json" ] || [ -e "$facts.ended.json" ] ||
        printf '{"time": %s, "code": %s, "said": "failed before '"'run'"' began, with exit code %s"}\n' \
            "$(date +%s)" "$code" "$code" >"$facts.ended.json"
}
trap fail EXIT

# Schedulers are called with LC_ALL=C and hand it on: this is what it was.
export LC_ALL=''

# Modules and environment of the machine.

