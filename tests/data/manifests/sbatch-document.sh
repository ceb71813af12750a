#!/bin/bash
# expect: WARN sbatch-ignored, WARN not-read
# says: `# SBATCH --nodes=4` is a comment
sbatch <<EOF
#!/bin/bash
# SBATCH --nodes=4
# SBATCH --ntasks-per-node=1
srun hostname
EOF
