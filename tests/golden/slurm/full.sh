#!/bin/bash
#SBATCH --job-name=paribus-0123456789ab-a1.feedbeef
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=8
#SBATCH --gres=gpu:a100:2
#SBATCH --mem=64G
#SBATCH --time=2-00:00:00
#SBATCH --partition=gpu,spare
#SBATCH --account=my-lab
#SBATCH --no-requeue
#SBATCH --signal=B:TERM@315
#SBATCH --export=ALL
#SBATCH --chdir=/share/work
#SBATCH --open-mode=append
#SBATCH --output=/share/home/engine/slurm/paribus-0123456789ab-a1.feedbeef.log
#SBATCH --qos=high
#SBATCH --exclusive
#SBATCH --comment="all else equal"

export PARIBUS_GRACE_S=300 PARIBUS_PATIENCE_S=inf
exec /share/venv/bin/python -m paribus.engines.launch remote /share/home/engine/slurm/paribus-0123456789ab-a1.feedbeef.exit paribus.attempt.supervisor /share/home/runs/0123/a1 /share/home/server.json 3
