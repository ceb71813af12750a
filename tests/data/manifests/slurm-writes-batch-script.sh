#!/bin/bash
# expect: FAIL node-count
# says: torchrun expects 2 nodes (--nnodes), but runs without srun
EXP=$PWD/$(date +%s)
NODES=$((16 / 8))
cat > "$EXP/job.sh" << EOF
#!/bin/bash
#SBATCH --nodes=$NODES
#SBATCH --ntasks-per-node=1
export HEAD=\$(scontrol show hostnames \$SLURM_JOB_NODELIST | head -n1)
torchrun --nnodes=\$SLURM_NNODES --nproc-per-node=8 --rdzv-backend=c10d --rdzv-endpoint=\$HEAD:29500 train.py
EOF
sbatch "$EXP/job.sh"
