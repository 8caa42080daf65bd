#!/bin/bash
# One batch job of a campaign, for Slurm. 'hydragnn-hpo submit' fills it in and puts job.sh behind;
# what was submitted lies in RUN/jobs.
#SBATCH --job-name=hpo-alloys
#SBATCH --nodes=2
#SBATCH --time=01:30:00
#SBATCH --account=mat123
#SBATCH --qos=debug
#SBATCH --mem=0
#SBATCH -C gpu
#SBATCH --gpus-per-node=4
# By this the run finds a job without a number.
#SBATCH --comment=hydragnn-hpo:3ae28dd8648423750af6
# Whole hosts: our own agents hand out their cores and devices.
#SBATCH --exclusive
# Beside this script, one file for each job.
#SBATCH --output=%j.out
# A host that fails must not end the others.
#SBATCH --no-kill
# The next job of the chain goes on after a loss; Slurm shall not start this one again as well.
#SBATCH --no-requeue
# To this shell alone, so many seconds before the end; Slurm may be up to a minute early.
#SBATCH --signal=B:USR1@300

# The end that was requested, for a Slurm that does not tell the real one.
HYDRAGNN_HPO_REQUESTED_END=$(($(date +%s) + 5400))
export HYDRAGNN_HPO_REQUESTED_END

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
module load cudatoolkit || exit
module load nccl || exit

