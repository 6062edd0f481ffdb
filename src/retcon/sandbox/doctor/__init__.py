"""What the sandbox enforces on this machine, and how to get what it does not."""

from retcon.sandbox.doctor.machine import Machine, advice, look
from retcon.sandbox.doctor.probing import TIERS, Probe, probe, probe_tiers

__all__ = ["TIERS", "Machine", "Probe", "advice", "look", "probe", "probe_tiers"]
