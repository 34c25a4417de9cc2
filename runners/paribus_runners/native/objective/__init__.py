"""The objective: one pure function for each level of each factor, one file a factor.

The order of operations is part of the definition: reward map, length rule, KL in the reward, group filter, baseline,
advantage scale, masks and token weights, ratio, clip rule, KL in the loss, aggregation, auxiliary losses. The first
six act once on the responses of a step (:mod:`.advantage`), as does the correction; the others on the tokens of each
update (:mod:`.loss`).
"""
