#!/bin/bash
# Train on several machines with SLURM, restart workers that die, and queue again when the time is over:
#   sbatch examples/cluster/slurm.sh cifar10-se2 --preset paper --out /shared/runs/cifar10
#SBATCH --job-name=vpgcnn
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=16
#SBATCH --time=04:00:00
#SBATCH --signal=B:TERM@180
#SBATCH --requeue
#SBATCH --open-mode=append
set -uo pipefail

processes="${PROCESSES:-${SLURM_GPUS_ON_NODE:-1}}" # on each machine
first="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"
export OMP_NUM_THREADS="$((${SLURM_CPUS_PER_TASK:-$processes} / processes))"
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 # without it, restarted workers may look for those before them

over=no
# SLURM sends SIGTERM to this script three minutes before the time is over: the run finishes its step and saves.
trap 'over=yes; scancel --signal=TERM "$SLURM_JOB_ID"' TERM

srun torchrun --nnodes "$SLURM_JOB_NUM_NODES" --nproc-per-node "$processes" --max-restarts 3 \
    --rdzv-backend c10d --rdzv-id "$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}" --rdzv-endpoint "$first:${PORT:-29500}" \
    -m vpgcnn train "$@" --resume &
step=$!
wait "$step"
code=$?
if [ "$over" = yes ]; then
    wait "$step" # the first wait ended with the signal, not with the run
    scontrol requeue "$SLURM_JOB_ID"
    code=0
fi
exit "$code"
