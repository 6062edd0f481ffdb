"""Retcon's rollouts in verl (0.9.1): SAAR, GRPO-RoC and the sandbox, with verl's loss, optimiser and servers.

verl makes an agent loop for every rollout (`agent`), in workers that a manager starts (`manager`), and takes batches
from a replay buffer (`sampler`); its configuration names each of them (docs/training/verl.md). Those three need verl,
as does `__main__`, which starts it; what stands beside them does not.
"""
