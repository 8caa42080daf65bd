#!/bin/bash
# One batch job of a campaign, for Flux. 'hydragnn-hpo submit' fills it in and puts job.sh behind;
# what was submitted lies in RUN/jobs.
#FLUX: --job-name={{name}}
#FLUX: --nodes={{hosts}}
#FLUX: --exclusive
#FLUX: --time-limit={{seconds}}s
{{options}}
# Beside this script, one file for each job.
#FLUX: --output={{id.dec}}.out

# This script begins a Flux of its own on the hosts of the job: agents are started there, and the
# Flux around it queues the next job. It sets no variable with the number of the job.
HYDRAGNN_HPO_FLUX_URI=$FLUX_URI
HYDRAGNN_HPO_FLUX_JOB=$(flux job id "$(flux getattr jobid)")
FLUX_URI=$(flux getattr parent-uri)
export HYDRAGNN_HPO_FLUX_URI HYDRAGNN_HPO_FLUX_JOB FLUX_URI

# The end is known from here, and when to leave checkpoints before it.
HYDRAGNN_HPO_END=$(($(date +%s) + {{seconds}}))
HYDRAGNN_HPO_END_MARGIN={{drain}}
export HYDRAGNN_HPO_END HYDRAGNN_HPO_END_MARGIN
