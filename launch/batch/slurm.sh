#!/bin/bash
# One batch job of a campaign, for Slurm. 'hydragnn-hpo submit' fills it in and puts job.sh behind;
# what was submitted lies in RUN/jobs.
#SBATCH --job-name={{name}}
#SBATCH --nodes={{hosts}}
#SBATCH --time={{time}}
{{options}}
{{mark}}
# Whole hosts: our own agents hand out their cores and devices.
#SBATCH --exclusive
# Beside this script, one file for each job.
#SBATCH --output={{log}}
# A host that fails must not end the others.
#SBATCH --no-kill
# The next job of the chain goes on after a loss; Slurm shall not start this one again as well.
#SBATCH --no-requeue
# To this shell alone, so many seconds before the end; Slurm may be up to a minute early.
#SBATCH --signal=B:USR1@{{drain}}

# The end that was requested, for a Slurm that does not tell the real one.
HYDRAGNN_HPO_REQUESTED_END=$(($(date +%s) + {{seconds}}))
export HYDRAGNN_HPO_REQUESTED_END
