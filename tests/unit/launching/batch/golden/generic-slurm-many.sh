#!/bin/bash
# One batch job of a campaign, for Slurm. 'hydragnn-hpo submit' fills it in and puts job.sh behind;
# what was submitted lies in RUN/jobs.
#SBATCH --job-name=hpo-alloys
#SBATCH --nodes=64
#SBATCH --time=02:00:00
#SBATCH --account=mat123
#SBATCH --array=1-3
#SBATCH --mem=0
# Whole hosts: our own agents hand out their cores and devices.
#SBATCH --exclusive
# Beside this script, one file for each job.
#SBATCH --output=%A_%a.out
# A host that fails must not end the others.
#SBATCH --no-kill
# The next job of the chain goes on after a loss; Slurm shall not start this one again as well.
#SBATCH --no-requeue
# To this shell alone, so many seconds before the end; Slurm may be up to a minute early.
#SBATCH --signal=B:USR1@300

# Told shortly before the end (USR1), or when the job is taken away (TERM), 'run' lets trials leave
# checkpoints and ends with code 75. The shell itself must not die of these signals.
asked=0
running=
drain() {
    asked=$((asked + 1))
    [ -z "$running" ] || kill -USR1 "$running" 2>/dev/null
}
trap drain USR1 TERM

# Modules and environment of the machine.

