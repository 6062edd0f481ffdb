#!/usr/bin/env bash
# Trains one of the recipes here with verl: bash recipes/verl/launch.sh cleaner-4b [KEY=VALUE of verl's …]
#
#   GPUS=8 NODES=1      of a node, and nodes: 1 to 64 GPUs in all. With several nodes a Ray is there already (ray.sh).
#   MODEL=…             what to start from; else the recipe's
#   DATA=data           where the Parquet files are, and are written to where they are not there yet
#   STAGE=1             of rstar2-14b: 1, 2 or 3
#   SANDBOX=http://…    servers of `retcon sandbox serve` to run calls on, divided by commas; else each worker has its own
#
# cleaner-7b and stage 3 of rstar2-14b want rates.jsonl here, of `retcon difficulty` with the model that they start from.
#
# All of these go to verl as KEY=VALUE: the processes of a Ray that runs already have the environment of `ray start`.
# RETCON_SANDBOX_TOKEN and the like reach them, too (docs/training/verl.md).
# KEY=VALUE after the name win over these; retcon.overrides=[…] is added to what is set here.
set -euo pipefail

name=${1:?"which one: cleaner-4b, dapo-baseline, cleaner-7b or rstar2-14b"}
shift
here=$(cd "$(dirname "$0")" && pwd)
GPUS=${GPUS:-8} NODES=${NODES:-1} DATA=${DATA:-data}
gpus=$((GPUS * NODES))
words=() overrides=()

set_key() { # KEY VALUE: a string of hydra's, whatever is in it
  local value=${2//\'/\\\'}
  words+=("$1='$value'")
}

case $name in
  cleaner-4b | dapo-baseline) recipe=$name set=cleaner ;;
  cleaner-7b) recipe=$name set=cleaner-7b overrides+=("'select.pass_rates='") ;;  # as below, by rates.jsonl of the start
  rstar2-14b)
    stage=${STAGE:-1} set=rstar2
    recipe=rstar2-14b/stage$stage
    : "${MODEL:?"what the stage before made: recipes/rstar2-14b"}"
    words+=(retcon.recipe="$recipe" trainer.experiment_name="rstar2-14b-stage$stage")
    case $stage in
      1) ;;
      2) words+=(data.max_response_length=12288 actor_rollout_ref.rollout.max_model_len=14336
                 trainer.total_training_steps=85) ;;
      3) words+=(data.max_response_length=12288 actor_rollout_ref.rollout.max_model_len=14336
                 trainer.total_training_steps=125) set=rstar2-hard
         overrides+=("'select.pass_rates='") ;;  # the export below has left out what the rates leave out
      *) echo "STAGE=$stage: 1, 2 or 3" >&2; exit 2 ;;
    esac ;;
  *) echo "$name: cleaner-4b, dapo-baseline, cleaner-7b or rstar2-14b" >&2; exit 2 ;;
esac

# Fewer GPUs hold less: weights and optimiser go to the host's memory, and long sequences are divided.
if ((gpus < 8)); then
  words+=(actor_rollout_ref.actor.fsdp_config.param_offload=true
          actor_rollout_ref.actor.fsdp_config.optimizer_offload=true)
elif ((gpus < 32)); then
  words+=(actor_rollout_ref.actor.fsdp_config.optimizer_offload=true)
fi
if ((GPUS == 1)); then
  words+=(actor_rollout_ref.rollout.tensor_model_parallel_size=1 actor_rollout_ref.rollout.gpu_memory_utilization=0.5)
fi
# Two processes a GPU run rollouts, and two units a node hold what they made.
words+=(trainer.nnodes="$NODES" trainer.n_gpus_per_node="$GPUS"
        actor_rollout_ref.rollout.agent.num_workers=$((gpus < 4 ? 8 : 2 * gpus))
        transfer_queue.backend.SimpleStorage.num_data_storage_units=$((2 * NODES < 8 ? 8 : 2 * NODES)))
if [[ -n ${SANDBOX:-} ]]; then
  overrides+=("'sandbox.url=[\"${SANDBOX//,/\",\"}\"]'")
fi
given=()
for word in "$@"; do
  case $word in
    retcon.overrides=\[\]) ;;
    retcon.overrides=\[*\]) word=${word#*\[} overrides+=("${word%\]}") ;;
    *) given+=("$word") ;;
  esac
done
words+=("retcon.overrides=[$(IFS=,; echo "${overrides[*]}")]")

mkdir -p "$DATA"
[[ -e $DATA/$set-train.parquet ]] || retcon data export --verl "$DATA/$set-train.parquet" --recipe "$recipe"
[[ -e $DATA/$set-evaluation.parquet ]] ||
  retcon data export --verl "$DATA/$set-evaluation.parquet" --recipe "$recipe" --evaluation

set_key data.train_files "$DATA/$set-train.parquet"
set_key data.val_files "$DATA/$set-evaluation.parquet"
set_key actor_rollout_ref.rollout.agent.agent_loop_config_path "$here/agent.yaml"
[[ -z ${MODEL:-} ]] || set_key actor_rollout_ref.model.path "$MODEL"

exec python -m retcon.plugins.verl --config-path "$here" --config-name "$name" "${words[@]}" "${given[@]}"
