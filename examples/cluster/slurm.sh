#!/usr/bin/env bash
# One job of `dynatrain train` on a Slurm cluster: one task per node, which starts the ranks of its node. DIR for checkpoints
# must be on a file system that all nodes share.
#
#   sbatch --nodes 2 examples/cluster/slurm.sh
#
# From the first node, while it runs: dynatrain switch --job 127.0.0.1:7070 tp=2,dp=8,zero=1
#SBATCH --job-name=dynatrain
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --signal=TERM@120
set -euo pipefail

RANKS_PER_NODE=${RANKS_PER_NODE:-8}
DATA=${DATA:?a text, or a .bin of tokens, that every node can read}
DIR=${DIR:?a directory for checkpoints that every node can write}
export OMP_NUM_THREADS=1

# The first task serves the store at MASTER_ADDR:MASTER_PORT; srun's variables say the rest. Two minutes before the time
# limit Slurm sends SIGTERM: the job saves and leaves, and goes on from there when it is submitted again.
RESUME=()
compgen -G "$DIR/step-*/checkpoint.json" > /dev/null && RESUME=(--resume "$DIR")
srun --kill-on-bad-exit=0 dynatrain train --model "${MODEL:-tiny-llama}" --data "$DATA" --nproc "$RANKS_PER_NODE" \
  --layout "${LAYOUT:-tp=2,pp=2,zero=1}" --steps "${STEPS:-1000}" --save "$DIR" --save-every 100 "${RESUME[@]}" \
  --control "127.0.0.1:${CONTROL_PORT:-7070}"
