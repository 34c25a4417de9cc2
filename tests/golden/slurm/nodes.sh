#!/bin/bash
#SBATCH --job-name=paribus-0123456789ab-a1.feedbeef
#SBATCH --nodes=2
#SBATCH --ntasks=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=2
#SBATCH --gres=gpu:a100:8
#SBATCH --mem=64G
#SBATCH --no-requeue
#SBATCH --signal=B:TERM@105
#SBATCH --export=ALL
#SBATCH --chdir=/share/work
#SBATCH --open-mode=append
#SBATCH --output=/share/home/engine/slurm/paribus-0123456789ab-a1.feedbeef.log

export PARIBUS_GRACE_S=90 PARIBUS_PATIENCE_S=inf
export PARIBUS_ON_NODE='srun --overlap --nodes=1 --ntasks=1 --kill-on-bad-exit=1 --input=none --mpi=none --quiet --cpus-per-task=2 --gres=gpu:a100:8 --relative={node}'
exec /share/venv/bin/python -m paribus.engines.launch remote /share/home/engine/slurm/paribus-0123456789ab-a1.feedbeef.exit paribus.attempt.supervisor /share/home/runs/0123/a1 /share/home/server.json 3
