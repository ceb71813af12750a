#!/bin/bash
# expect: FAIL broken-line, WARN not-read
# says: a blank behind the backslash ends the command there
jsrun -n 1 -a 4 -g 4 \ 
python -u train.py --deepspeed
