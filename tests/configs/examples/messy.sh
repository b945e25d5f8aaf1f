# no shebang, tabs, carriage returns elsewhere, a function, eval, a heredoc
NNODES=2
	NPROC=8
cat > hosts.txt <<EOF
--num-layers 1000 this is no option of the training
EOF
base_args() {
  ARGS="--num-layers 48 --hidden-size 1600 --num-attention-heads 25 --kv-channels 64"
  ARGS="$ARGS --seq-length 1024 --max-position-embeddings 1024"
}
base_args
ARGS="${ARGS} --tensor-model-parallel-size 1 --pipeline-model-parallel-size=4" # inline
for SCHEDULE in layout even; do
  if [ "$SCHEDULE" == "layout" ]; then
    ARGS+=" --pipeline-model-parallel-layout \"Et*11|t*13|t*13|t*11L\""
  fi
done
[ -f /etc/motd ] && ARGS="$ARGS --log-interval 8"
TRAIN='--micro-batch-size 2 --global-batch-size 64 --fp16 --vocab-size 50257'
CMD="torchrun --nproc-per-node=$NPROC --nnodes=$NNODES pretrain_gpt.py $ARGS $TRAIN $EXTRA_ARGS"
echo $CMD
eval $CMD
