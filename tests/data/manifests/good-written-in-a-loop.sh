#!/bin/bash
# expect: nothing
for NODES in 2 4; do
cat > job_$NODES.sbatch <<END
#!/bin/bash
#SBATCH --nodes=$NODES
#SBATCH --ntasks-per-node=1
HEAD=\$(scontrol show hostnames \$SLURM_JOB_NODELIST | head -n1)
srun torchrun --nnodes=$NODES --nproc-per-node=8 --rdzv-backend=c10d --rdzv-id=\$SLURM_JOB_ID --rdzv-endpoint=\$HEAD:2950$NODES t.py
END
sbatch job_$NODES.sbatch
done
