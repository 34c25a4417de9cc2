#!/bin/bash
#SBATCH --job-name=paribus-0123456789ab-a1.feedbeef
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=1
#SBATCH --no-requeue
#SBATCH --signal=B:TERM@105
#SBATCH --export=ALL
#SBATCH --chdir="/share/it's here"
#SBATCH --open-mode=append
#SBATCH --output="/share/%%j \"x\" #1/paribus-0123456789ab-a1.feedbeef.log"

export PARIBUS_GRACE_S=90 PARIBUS_PATIENCE_S=inf
export CUDA_VISIBLE_DEVICES=
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
exec '/share/my env/bin/python' -m paribus.engines.launch remote '/share/%j "x" #1/paribus-0123456789ab-a1.feedbeef.exit' m '$(date)' 'a b' ''"'"'' ''
