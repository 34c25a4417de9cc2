#!/bin/bash
#SBATCH --job-name=paribus-0123456789ab-a1.feedbeef
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=1
#SBATCH --no-requeue
#SBATCH --signal=B:TERM@105
#SBATCH --export=ALL
#SBATCH --chdir=/share/work
#SBATCH --open-mode=append
#SBATCH --output=/share/home/engine/slurm/paribus-0123456789ab-a1.feedbeef.log

export PARIBUS_GRACE_S=90 PARIBUS_PATIENCE_S=inf
export CUDA_VISIBLE_DEVICES=
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
exec /share/venv/bin/python -m paribus.engines.launch remote /share/home/engine/slurm/paribus-0123456789ab-a1.feedbeef.exit paribus.attempt.supervisor /share/home/runs/0123/a1 /share/home/server.json 3
