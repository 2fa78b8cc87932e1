"""Models that several GPUs share: what travels between them is in FP8.

``ExpertParallel`` and ``expert_parallel`` spread the experts of a mixture over the ranks of a group.
"""

from octile.torch.distributed.expert_parallel import ExpertParallel, SpreadReport, expert_parallel

__all__ = ["ExpertParallel", "SpreadReport", "expert_parallel"]
