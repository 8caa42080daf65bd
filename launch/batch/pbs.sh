#!/bin/bash -l
# One batch job of a campaign, for PBS Professional or OpenPBS. 'hydragnn-hpo submit' fills it in
# and puts job.sh behind; what was submitted lies in RUN/jobs.
#PBS -N {{name}}
#PBS -l select={{hosts}}
#PBS -l walltime={{time}}
{{options}}
# Beside this script, one file for each job.
#PBS -j oe
# The next job of the chain goes on after a loss; PBS shall not start this one again as well.
#PBS -r n

# PBS gives no early signal: the end is known from here, and when to leave checkpoints before it.
HYDRAGNN_HPO_END=$(($(date +%s) + {{seconds}}))
HYDRAGNN_HPO_END_MARGIN={{drain}}
export HYDRAGNN_HPO_END HYDRAGNN_HPO_END_MARGIN
