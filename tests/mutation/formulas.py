"""Plausible mistakes in the objective, by file, and the tests of which some must see each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

NATIVE = Path("runners/paribus_runners/native")


class TableError(Exception):
    """The table does not fit the code any more."""


@dataclass(frozen=True)
class Mutant:
    """One mistake.

    Attributes:
        file: name of a file of the native runner, as in ``objective/clip.py``.
        right: a text that occurs in it once.
        wrong: what takes its place.
        mimics: the mistake, in words.
    """

    file: str
    right: str
    wrong: str
    mimics: str

    @property
    def path(self) -> Path:
        """The file, from the root of the repository."""
        return NATIVE / self.file

    def applied(self, root: Path) -> str:
        """Return the text of the file with the mistake in it.

        Raises:
            TableError: the right text does not occur exactly once, or is the wrong one.
        """
        text = (root / self.path).read_text()
        if (count := text.count(self.right)) != 1:
            raise TableError(f"{self.path}: {self.right!r} occurs {count} times, not once: bring the table up to date")
        if self.right == self.wrong:
            raise TableError(f"{self.path}: {self.right!r} replaced by itself is no mistake")
        return text.replace(self.right, self.wrong)


TESTS: Mapping[str, tuple[str, ...]] = {
    "objective/advantage.py": (
        "objective_presets.py",
        "objective_critic.py",
        "objective_batches.py",
        "objective_responses.py",
    ),
    "objective/aggregation.py": ("objective_tokens.py", "objective_batches.py"),
    "objective/baseline.py": ("objective_responses.py", "objective_bandit.py", "objective_groups.py"),
    "objective/clip.py": ("objective_tokens.py", "objective_clips.py"),
    "objective/correction.py": ("objective_correction.py",),
    "objective/filter.py": ("objective_responses.py", "objective_batches.py"),
    "objective/gae.py": ("objective_critic.py",),
    "objective/history.py": ("objective_history.py",),
    "objective/kl.py": ("objective_bandit.py", "objective_tokens.py", "objective_clips.py"),
    "objective/length.py": ("objective_responses.py", "objective_groups.py"),
    "objective/loss.py": (
        "objective_groups.py",
        "objective_correction.py",
        "objective_tokens.py",
        "objective_clips.py",
        "objective_whole_batch.py",
    ),
    "objective/mirror.py": ("objective_groups.py",),
    "objective/step.py": (
        "objective_steps.py::test_advantages_are_those_of_an_independent_computation",
        "objective_steps.py::test_responses_that_are_left_out_have_no_part",
    ),
    "objective/pair.py": ("objective_pairs.py",),
    "objective/pass_at_k.py": ("objective_pass_at_k.py",),
    "objective/ratio.py": ("objective_clips.py", "objective_tokens.py"),
    "objective/reward.py": ("objective_batches.py", "objective_responses.py"),
    "objective/whole_batch.py": ("objective_whole_batch.py",),
    "objective/router.py": ("router.py::test_shift_by_hand", "router.py::test_shift_has_no_gradient"),
    "objective/scale.py": ("objective_responses.py", "objective_critic.py"),
    "objective/segment.py": ("objective_responses.py",),
    "objective/token_weight.py": ("objective_tokens.py",),
    "objective/value.py": ("objective_critic.py",),
    "support.py": (
        "support.py::test_supports_are_taken_apart_and_put_together",
        "support.py::test_chunks_over_a_support_agree_with_the_textbook",
        "support.py::test_top_k_comes_before_top_p",
        "support.py::test_the_support_is_that_of_transformers",
    ),
    "head.py": (
        "support.py::test_chunks_over_a_support_agree_with_the_textbook",
        "head.py::test_later_passes_add_to_the_gradient_of_the_first_in_place",
        "head.py::test_a_gradient_that_is_there_is_left_alone_where_the_weight_gets_none",
    ),
    "head_triton.py": ("head_triton.py",),
    "trainer.py": ("temperatures.py::test_a_run_samples_and_learns_at_the_temperature_of_the_step",),
    "rollout/retired.py": (
        "retired.py::test_without_solved_prompts_the_walk_is_that_of_every_run",
        "retired.py::test_each_pass_goes_once_through_the_prompts_that_are_left",
        "retired.py::test_a_pool_without_a_prompt_left_is_an_end",
        "retired.py::test_prompts_go_by_the_share_of_right_responses",
    ),
    "experience.py": ("distillation.py", "objective_history.py", "objective_correction.py", "objective_presets.py"),
    "responses.py": (
        "turns.py::test_sampler_learner_and_the_plain_model_agree_on_what_the_model_wrote",
        "turns.py::test_selecting_and_joining_keep_answers_in_their_places",
    ),
    "log_probabilities.py": (
        "turns.py::test_sampler_learner_and_the_plain_model_agree_on_what_the_model_wrote",
        "turns.py::test_turns_of_a_truncated_distribution_are_scored_over_what_was_left",
    ),
    "rollout/torch.py": (
        "sampler.py::test_draws_follow_the_renormalised_nucleus",
        "turns.py::test_sampler_learner_and_the_plain_model_agree_on_what_the_model_wrote",
        "turns.py::test_the_environment_reads_the_response_so_far",
        "turns.py::test_limits_end_a_response",
    ),
    "experts.py": (
        "routing_replay.py::test_experts_are_taken_apart_and_put_together",
        "routing_replay.py::test_a_block_has_the_current_routers_weights_over_the_given_set",
        "routing_replay.py::test_each_kind_of_mixture_repeats_itself",
        "routing_replay.py::test_the_learner_with_the_samplers_experts_finds_its_probabilities",
        "routing_replay.py::test_passes_of_others_route_for_themselves",
    ),
    "optimizer.py": (
        "optimizer.py::test_all_numbers_are_dealt_out_once_in_about_equal_parts",
        "optimizer.py::test_it_steps_as_adamw_does",
        "optimizer.py::test_weights_in_bfloat16_move_by_steps_that_they_would_round_away",
        "optimizer.py::test_a_state_goes_on_in_other_numbers_of_processes",
        "optimizer.py::test_processes_that_share_the_optimizer_hold_a_part_and_step_alike",
        "sharded_weights.py::test_a_process_keeps_its_share_alone_while_weights_are_updated",
    ),
    "sharded_weights.py": (
        "sharded_weights.py::test_a_model_of_another_shape_is_refused",
        "sharded_weights.py::test_a_process_keeps_its_share_alone_while_weights_are_updated",
        "sharded_weights.py::test_a_run_has_the_numbers_of_one_that_shares_nothing[plain-2]",
        "sharded_weights.py::test_a_run_has_the_numbers_of_one_that_shares_nothing[plain-3]",
        "sharded_weights.py::test_a_run_that_was_stopped_goes_on_in_more_or_fewer_processes[float32-4-2]",
    ),
    "wide_gradients.py": (
        "optimizer.py::test_weights_in_bfloat16_move_by_steps_that_they_would_round_away",
        "optimizer.py::test_gradients_of_bfloat16_weights_are_summed_in_float32",
    ),
    "batch.py": ("objective_batches.py", "objective_pairs.py", "objective_presets.py", "objective_correction.py"),
}
"""Of ``tests/unit/native/test_*``, the files or tests that are asked about each file, quickest first."""

_TABLE: Mapping[str, tuple[tuple[str, str, str], ...]] = {
    "support.py": (
        ("logits.masked_fill(outside, -math.inf)", "logits", "the learner takes the whole vocabulary"),
        ("logp.masked_fill(outside, 0.0)).sum(-1)", "logits.log_softmax(-1)).sum(-1)", "an entropy of two distributions"),
        ("top_p * running[..., -1:]", "top_p", "top-p of all, not of what top-k leaves"),
        ("(running - ordered < share)", "(running < share)", "the token that reaches the share is left out"),
        ("self.size[:first].sum()", "self.size[: first + 1].sum()", "the sets of the places after them"),
        ("(length.cumsum(0) - length)[rows]", "length.cumsum(0)[rows]", "the sets of the next places"),
    ),
    "experts.py": (
        ('getattr(router, "norm_topk_prob", True)', "True", "weights that are always normalised"),
        ('getattr(router, "norm_topk_prob", True)', "False", "weights that are never normalised"),
        ("p = logits.softmax(-1, dtype=torch.float32).gather(-1, taken)", "p = weights", "the weights of other experts"),
        ("return None if choice is None else", "return None if choice is not None else", "nothing is directed"),
        ("step < length[row] - 1", "step < length[row]", "the last token has experts"),
        ("self._prompts[prompt] + length - 1", "self._prompts[prompt] + length", "one token too many of each response"),
        ("(row[there] * len(self._rows) + step[there])", "step[there]", "tokens of all responses mixed"),
        ("named[\"layout\"].choice", "named[\"layout\"].choice or getattr(self._router, _CHOICE, None)",
         "a pass takes the experts of the pass before"),
    ),
    "optimizer.py": (
        ("else cut - cut % ALIGNED for", "else cut for", "cuts inside of what a vector instruction takes"),
        ("math.inf if limit is None else limit", "math.inf", "no limit of the norm"),
        ("weight_decay=settings.weight_decay", "weight_decay=0.0", "no weight decay"),
        ("self._view(piece).copy_(stepped.view(-1))", "pass", "weights that never get what was stepped for them"),
        ("self._world.send(self._view(piece), owner)", "pass", "a process keeps the old weights of the others"),
        ("self._numbers(own_part(gradient), piece)", "own_part(gradient).view(-1)[: piece.end - piece.first]",
         "the gradient of the first numbers"),
        ("x.mul_(limit / (norm + 1e-6))", "pass", "no limit of the norm of shares"),
        ("sum(self._world.gather(square))", "square", "each process the norm of its share"),
        ('target = stepped if kind == "master" else', "target =", "a copy starts again from the rounded weights"),
        ("first - self.first : end - self.first", ": end - first", "the state of the first numbers of a part"),
        ('"" if self._whole(piece) else f"/{piece.first}"', '""', "parts of a weight under one name"),
    ),
    "sharded_weights.py": (
        ("set_gradient_divide_factor(1.0)", "set_gradient_divide_factor(2.0)", "the mean of two gradients"),
        ("[first : first + own.numel()]", "[: own.numel()]", "each process has the first share"),
        ("weight.shape[0]) * (weight.numel() // weight.shape[0])", "weight.shape[0])", "a row's place among numbers"),
        ("-(-weight.shape[0] // int(mesh.size()))", "weight.shape[0] // int(mesh.size())", "shares of rows rounded down"),
    ),
    "wide_gradients.py": (
        ("weight.grad.float() if holder.grad is None else holder.grad.add_(weight.grad)", "weight.grad.float()",
         "the last pass alone"),
        ("    weight.grad = None\n", "", "passes that are added again"),
        ("holder.grad = torch.zeros_like(weight, dtype=torch.float32)", "return None", "the head's sum in bfloat16"),
    ),
    "head.py": (
        ("z.masked_fill_(outside, -math.inf)", "pass", "the whole vocabulary in chunks"),
        ("self.support.between(first, first + len(z))", "self.support.between(0, len(z))", "each chunk has the first sets"),
        ("first=i == 0 and there is None", "first=i == 0", "a later pass overwrites the gradient of those before"),
        ("self.rows(), support, parameter, kernels)", "self.rows(), support, None, kernels)", "no pass adds in place"),
        ("self.weight.is_leaf and self.weight.requires_grad", "self.weight.is_leaf", "a frozen head gets a gradient"),
    ),
    "head_triton.py": (
        ("mass = shrink * mass + ", "mass = mass + ", "the sum keeps an earlier maximum"),
        ("(moment + (top - higher) * mass)", "moment", "differences from an earlier maximum"),
        ("top = higher", "top = tl.max(x, 0)", "the maximum of a block, of what is divided and moved"),
        ("tl.where(e == 0.0, 0.0, x) * e", "x * e", "0 log 0 is no number"),
        ("log_mass - moment / mass", "log_mass - moment", "an entropy without its denominator"),
        ("tl.store(total + row, top + log_mass)", "tl.store(total + row, log_mass)", "probabilities without the maximum"),
        ("of_target, 0.0) - of_target * p", "of_target, 0.0) - p", "probabilities that the gradient does not weigh"),
        ("d -= tl.load(ge + row)", "d += tl.load(ge + row)", "entropy with the wrong sign"),
        ("x + tl.load(entropy + row)", "x", "the entropy's gradient without the entropy"),
        ("(d / divisor)", "d", "a gradient of the divided logits"),
        ("column == tl.load(targets + row)", "column == tl.load(targets)", "all rows have the first target"),
    ),
    "trainer.py": (
        ("learner, recipe, queued, phases = self._learner, self._recipe.at(step)",
         "learner, recipe, queued, phases = self._learner, self._recipe", "the learner keeps the first temperature"),
        ("self._recipe.at(ahead), self._source", "self._recipe.at(step), self._source", "stale rollouts at the temperature of now"),
    ),
    "objective/reward.py": (
        ("2 * y - 1", "y - 1", "a map to -1 and 0"),
        ("weight, level.factor * {", "weight, 1.0 * {", "the factor is forgotten"),
        ("total = total + weight * r", "total = total + r", "rewards are added without their weights"),
        ("2 * formatted.to(score.dtype) - 1", "formatted.to(score.dtype)", "the form's own score is 0 or 1"),
    ),
    "objective/length.py": (
        ("/ (rule.hard_cap - rule.soft_start)", "/ rule.hard_cap", "the punishment is divided by the cap, not the cache"),
        ("over.clamp(-1, 0)", "over.clamp_max(0)", "no floor at -1"),
        ("merit = -length.to", "merit = length.to", "the longest are kept"),
        ("else reward / length", "else reward", "the reward without its tokens"),
        ("rank < keep.count", "rank <= keep.count", "one more is kept"),
        ("torch.where(there, merit, -torch.inf)", "merit", "dropped responses take places"),
        ('level.truncated == "drop"', 'level.truncated != "as_scored"', "masked responses leave the group's statistics"),
    ),
    "objective/filter.py": (
        ('level.metric == "correct"', 'level.metric != "correct"', "filter on the shaped reward instead of correctness"),
        ("groups) > 0", "groups) >= 0", "groups without spread are kept"),
        ("scored.correct[there], shaped[there], scored.group[there]", "scored.correct, shaped, scored.group", "truncated responses make spread though they are dropped"),
        ("shaped = shaped_reward(recipe, scored)", "shaped = scored.score", "spread of the score before shaping"),
    ),
    "objective/baseline.py": (
        ("centred * size / (size - 1).clamp_min(1)", "centred", "leave-one-out without its factor"),
        ("centred * size / (size - 1)", "centred * (size - 1) / size", "the factor of leave-one-out upside down"),
        ("reward - reward.mean()", "reward", "no batch mean"),
        ("groups)[group] > 0", "groups)[group] > -1", "rounding passes for spread"),
        ("segment.total(L * reward, group, groups)", "segment.total(reward, group, groups)", "rewards without lengths"),
        ("/ segment.total(L, group, groups).clamp_min(1)", "/ segment.total(L**2, group, groups)", "lengths squared"),
    ),
    "objective/scale.py": (
        ("(weight.sum() - ddof)", "weight.sum()", "ddof of the batch std is 0"),
        ("divisor = std + eps", "divisor = (std**2 + eps).sqrt()", "eps under the root"),
        ("values = reward if raw else", "values = reward if not raw else", "raw and centred batch std swapped"),
        ('level.unit == "token"', 'level.unit == "sequence"', "units swapped"),
        ("x = x - (weight * x).sum() / weight.sum()\n    return", "return", "whitening without subtracting the mean"),
        ("((weight * (x - mean) ** 2)", "((weight * x**2)", "second moment instead of variance"),
        ("torch.where(divisor > 0, x / divisor, torch.zeros_like(x))", "x / divisor", "0 / 0 without spread"),
    ),
    "objective/gae.py": (
        ("gamma * following", "gamma * value[:, t]", "V_t where V_{t+1} belongs"),
        ("gamma * lam * later", "lam * later", "the trace is not discounted"),
        ("reward, value = reward * mask, value * mask", "reward = reward * mask", "values behind the end leak in"),
        ("1 - 1 / (rule.alpha * length.double())", "1 - rule.alpha / length.double()", "alpha in the numerator"),
        (").clamp(0, 1)", ")", "lambda below 0 for short responses"),
    ),
    "objective/history.py": (
        ("found.append(now.get(", "found.append(history.get(", "the history lacks the current visit"),
        ("first.abs() <= second.abs()", "first.abs() >= second.abs()", "the larger of the two mixtures"),
        ("before / i * (mean - self.mean) ** 2", "(mean - self.mean) ** 2", "cumulative variance without its factor"),
        ("(before * self.mean + mean) / i", "(self.mean + mean) / 2", "running mean of two"),
        ("((i - 1) * new + total) / i, ", "(new + total) / 2, ", "a plain average as the first mixture"),
        ("divisor = total_std + level.eps", "divisor = (total_std**2 + level.eps).sqrt()", "eps under the root"),
        ("torch.where(i > 1, torch.where(first", "torch.where(i > 2, torch.where(first", "history from the third visit on"),
    ),
    "objective/advantage.py": (
        ("scored) - scored.kl", "scored) + scored.kl", "KL rewarded"),
        ("raw + length.punishment", "raw - length.punishment", "length rewarded"),
        ("total = total + weight * scale", "total = total + scale", "two rewards without their weights"),
        ("return scale.scale(level, total, total, scored.length[kept], group, groups)", "return total", "no whitening"),
        ("reward = -charge.double()", "reward = charge.double()", "KL of a token rewarded"),
        ("(scored.length - 1).clamp_min(0)", "(0 * scored.length + mask.shape[1] - 1)", "the reward stands in the padding"),
        ("gae.estimate(reward, V, mask, gamma, lam) + V", "gae.estimate(reward, V, mask, gamma, lam)", "targets without V"),
        (
            "lam = torch.full_like(end, recipe.baseline.critic_lambda)",
            "lam = gae.policy_lambda(recipe.baseline, scored.length)",
            "targets of the critic with the policy's lambda",
        ),
        ("reward.flip(1).cumsum(1).flip(1)", "reward.cumsum(1)", "rewards so far instead of rewards to come"),
        ("A - A[kept, 0].mean()", "A - A[kept].mean()", "batch mean over padding"),
        ("tokens = mask & kept[:, None]", "tokens = mask", "dropped responses in the statistics"),
        ("else 1 / scored.length.double()", "else torch.ones_like(end)", "unit sequence counts tokens"),
        ("R, group = shaped[kept], scored", "R, group = raw_reward(recipe, scored)[kept], scored", "A of the raw reward"),
    ),
    "objective/ratio.py": (
        ("segment.total if isinstance", "segment.mean if isinstance", "a product ratio that is a geometric mean"),
        ("else segment.mean", "else segment.total", "a geometric mean that is a product"),
        ("sequence.detach() * (d", "sequence * (d", "GSPO-token without its stopped gradient"),
        ("return (d - d.detach()).exp()", "return d.exp()", "REINFORCE with a ratio"),
        ("return d.clamp(-LOG_LIMIT, LOG_LIMIT).exp()", "return d.exp()", "no guard against overflow"),
    ),
    "objective/clip.py": (
        ("least = torch.minimum(", "least = torch.maximum(", "the wrong side of the clip"),
        ("edges = 1 - level.low, 1 + level.high", "edges = 1 - level.high, 1 + level.low", "bounds swapped"),
        ("clipped.detach() * A", "clipped * A", "CISPO without its stopped gradient"),
        ("edges = level.floor, level.cap", "edges = level.floor, 1 + level.cap", "a cap relative to 1"),
        ("torch.where(A < 0, torch.maximum", "torch.where(A > 0, torch.maximum", "dual clip on the other sign"),
        ("level.c * A)", "-level.c * A)", "dual clip's bound with the wrong sign"),
        ("r.clamp_max(level.delta)", "r.clamp_max(1 + level.delta)", "a delta relative to 1"),
        ("level.tau_positive, level.tau_negative)", "level.tau_negative, level.tau_positive)", "temperatures swapped"),
        ("4 / tau * torch", "4 * torch", "a gate without its normalisation"),
        (
            "torch.where(A > 0, d.clamp_max(level.high), torch.where(A < 0, d.clamp_min(-level.low), d))",
            "d.clamp(-level.low, level.high)",
            "logs clipped on both sides",
        ),
        ("torch.where(A < 0, d.clamp_min(-level.low)", "torch.where(A < 0, d.clamp_min(-level.high)", "one bound for both"),
        ("(1 + 4 * level.high / q)", "(1 + 4 * level.high * q)", "a band that widens for likely tokens"),
        (".sqrt()).clamp_max(level.cap)", ".sqrt())", "a dynamic band without its cap"),
        ("math.exp(-level.low), math.exp(level.high)", "1 - level.low, 1 + level.high", "log bounds read as bounds of r"),
        ("return 4 / tau", "return r * 4 / tau", "a gate on top of the ratio"),
        ("dual = (A < 0) & (r > level.c)", "dual = (r > level.c)", "a dual clip counted for both signs"),
        ("capped = (A != 0) & (", "capped = (A > 0) & (", "capped weights counted for one sign (TRL)"),
        ("(level.high < D) & (A > 0) & (p > q)", "(level.high < D) & (A > 0)", "a divergence that stops tokens on their way back"),
        ("(level.low < D) & (A < 0)", "(level.high < D) & (A < 0)", "one bound of the divergence for both signs"),
        ("D = (p - q).abs()", "D = (new - old).abs()", "a difference of logs for one of probabilities"),
        ("q * (old - new) + (1 - q)", "q * (old - new) + 0 * (1 - q)", "a binary KL without the other tokens"),
        ("q * (old - new) + (1 - q)", "p * (new - old) + (1 - q)", "the KL the other way round in its first term"),
        ("kept * r.clamp_max(level.cap).detach()", "kept * r.detach()", "DPPO without its cap"),
        ("level.cap).detach() * A * new", "level.cap) * A * new", "DPPO without its stopped gradient"),
        ("(A != 0) & ~out & (r > level.cap)", "(A > 0) & ~out & (r > level.cap)", "capped weights of one sign counted"),
        ("level.beta_high * high, level.beta_low * low", "level.beta_high * high, level.beta_high * low", "one beta of CE-GPPO for both sides"),
        ("bound / r.detach(), torch.ones_like(r)) * r * A", "bound / r, torch.ones_like(r)) * r * A", "CE-GPPO without its stopped gradient"),
        ("bound / r.detach(), torch.ones_like(r)) * r * A", "bound, torch.ones_like(r)) * r * A", "CE-GPPO that multiplies bound and ratio"),
        ("torch.where(A > 0, (1 / r).clamp_max(level.c_positive), r", "torch.where(A < 0, (1 / r).clamp_max(level.c_positive), r", "the ratio of wrong tokens flipped"),
        ("(1 / r).clamp_max(level.c_positive)", "(1 / r)", "ASPO without its cap"),
        ("torch.where(out, torch.ones_like(r), r / r.detach())", "r / r.detach()", "ASPO without its clip"),
        ("lam * (1 - r)).exp()", "lam * (0 - r)).exp()", "phi that is not 1 at r = 1"),
        ("(k * r.log() + lam", "(r.log() + lam", "a power of one in VESPO"),
        ("torch.where(A >= 0, level.k_positive, level.k_negative)", "torch.where(A >= 0, level.k_negative, level.k_positive)", "powers swapped"),
        ("gamma(level, r.detach(), A) * A", "gamma(level, r, A) * A", "VESPO without its stopped gradient"),
        ("(flipped(level, r, A) < raw)", "(flipped(level, r, A) <= raw)", "weights below the cap counted as capped"),
        ("high.clamp_min(level.delta)", "high", "tokens above the bound but below delta counted as cut"),
    ),
    "objective/correction.py": (
        ("d = old - sampler", "d = sampler - old", "the inverse weight"),
        ("raw.clamp_max(level.cap)", "raw.clamp_max(1 + level.cap)", "a cap relative to 1"),
        ("raw.clamp_max(level.cap)", "raw.clamp(1 / level.cap, level.cap)", "truncation from below as well"),
        ("segment.total(d, row, rows)[row]", "segment.mean(d, row, rows)[row]", "a product that is a geometric mean"),
        ("return inside if isinstance(level, f.GeometricMask) else", "return", "a mask of responses that also weighs"),
        ("(raw < level.low) | (raw > level.high)", "raw > level.high", "a mask with one bound"),
        ("left[row] & (A < 0)", "left[row]", "right responses masked as well"),
        ("left[row] & (A < 0)", "left[row] & (A <= 0)", "responses without advantage counted as masked"),
        ("segment.mean(sampler - new.detach(), row", "segment.mean(new.detach() - sampler, row", "responses that became likelier"),
        ("segment.mean(sampler - new.detach(), row", "segment.total(sampler - new.detach(), row", "a sum, so that long responses go first"),
        ("return weight(level.mask, old, sampler, row, rows) *", "return", "a chain without its mask"),
        ("changed(level.mask, old, sampler, row, rows) |", "changed(level.mask, old, sampler, row, rows) &", "a chain counted where both act"),
    ),
    "objective/kl.py": (
        ("(-u).exp() - 1 + u", "u.exp() - 1 - u", "k3 of the other direction"),
        ("u**2 / 2", "u**2", "k2 without its half"),
        (".exp()\n        return level.beta * r", ".exp().detach()\n        return level.beta * r", "a weight without gradient"),
        ("r = (new - old)", "r = (old - new)", "the inverse ratio before KL"),
        (
            "KlInReward):\n        return torch.zeros_like(old)\n    return level.beta * estimate(level.estimator, old - reference)",
            "KlInReward):\n        return torch.zeros_like(old)\n    return level.beta * estimate(level.estimator, reference - old)",
            "KL of the other sign",
        ),
        (
            "KlInAdvantage):\n        return torch.zeros_like(old)\n    return level.beta * estimate(level.estimator, old - reference)",
            "KlInAdvantage):\n        return torch.zeros_like(old)\n    return level.beta * estimate(level.estimator, reference - old)",
            "a student that flees from its teacher",
        ),
        (
            "KlInAdvantage):\n        return torch.zeros_like(old)\n    return level.beta * estimate",
            "KlInAdvantage):\n        return torch.zeros_like(old)\n    return estimate",
            "beta forgotten in the advantage",
        ),
        ("(new - old).clamp(-LOG_LIMIT, LOG_LIMIT)", "(new - old)", "no guard against overflow"),
    ),
    "objective/token_weight.py": (
        ("argsort(descending=True", "argsort(descending=False", "the tokens of low entropy"),
        ("level.alpha * old.exp() + 1 - level.alpha", "(1 - level.alpha) * old.exp() + level.alpha", "alpha for 1 - alpha"),
    ),
    "objective/router.py": (
        ("clamp_min(level.floor)", "clamp_max(level.floor)", "the wrong side of the floor"),
        ("(now - old.logp).abs()", "(now - old.logp)", "moves of opposite sign cancel"),
        (".mean((-2, -1))", ".sum((-2, -1))", "a sum over layers and experts"),
        ("new_logp.detach()", "new_logp", "gradient through the routers"),
    ),
    "objective/aggregation.py": (
        ("return 1 / (rows * L)", "return 1 / (rows * L.mean().expand_as(L))", "the mean length in the place of each"),
        ("(1 / (groups * segment.total(L, group, groups)))", "(1 / segment.total(L, group, groups))", "a sum over groups"),
        ("1 / float(L.sum())", "1 / float(L.max() * len(L))", "padding in the denominator"),
        ("(level.length or limit)", "int(L.max())", "the longest response for the constant"),
        ("(1 / (count * segment", "(1 / (1 * segment", "a sum over micro-batches"),
        ("torch.full_like(L, 1 / rows)", "torch.full_like(L, 1.0)", "a sum over responses"),
        ("SequenceMeanSum)\n    return 1 / L", "SequenceMeanSum)\n    return 1 / (rows * L)", "a mean over responses"),
    ),
    "objective/loss.py": (
        (
            "x = clip.surrogate(recipe.clip, r, A,",
            "x = clip.surrogate(recipe.clip, tokens.correction * r, A,",
            "correction before the clip, whose centre it moves",
        ),
        ("x = x - tokens.penalty * (new", "x = x + tokens.penalty * (new", "the penalty of KL-Cov rewarded"),
        ("x = tokens.correction * x", "x = tokens.correction * x if tokens.penalty is None else x", "a penalty without the correction"),
        ("x = x * ~out", "x = x * out", "the wrong responses masked"),
        ("x = x - kl.in_loss(", "x = x - tokens.correction * kl.in_loss(", "KL corrected as well"),
        ("x = x - kl.in_loss(", "x = x + kl.in_loss(", "KL rewarded"),
        ("value - recipe.auxiliary.entropy *", "value + recipe.auxiliary.entropy *", "entropy punished"),
        ("value - recipe.auxiliary.positive_nll *", "value + recipe.auxiliary.positive_nll *", "correct responses unlearned"),
        ("value = value + mirror.distance", "value = mirror.distance", "the distance alone"),
        ('target == "ratio"', 'target != "ratio"', "router shift on the other target"),
        ("d = d + shift.log()", "d = d * shift", "router shift on the logarithm of the ratio"),
        ("d.exp() if isinstance(recipe.clip, f.LogClip) else r", "r", "clip fractions of GMPO by the response's ratio"),
    ),
    "objective/whole_batch.py": (
        ("(A - A[there].mean()) * (new", "A * (new", "advantages that are not centred"),
        ("(new - new[there].mean())", "(new - new.mean())", "the mean over tokens that take no part"),
        ("replace(tokens, advantage=A * ~chosen)", "replace(tokens, advantage=A * chosen)", "the drawn tokens alone trained"),
        ("& there & ~(cut.low | cut.high)", "& there", "clipped tokens drawn as well"),
        (".topk(_count(", ".neg().topk(_count(", "the smallest covariance charged"),
        (".masked_fill(~there, -torch.inf)", "", "tokens without a part charged"),
        ("max(1, int(fraction", "max(0, int(fraction", "no token where the share is small"),
        ("r.clamp_max(high), r.clamp_min(low)", "r.clamp(low, high), r.clamp(low, high)", "both bounds for both signs"),
        ("positive / (positive + negative + EPS)", "positive / (negative + EPS)", "a ratio for a share"),
        ("low=1 - found.low, high=found.high - 1", "low=1 - level.low_start, high=level.high_start - 1", "bounds found and not used"),
        ("and low < level.low_end:", "and low < level.low_start:", "the lower bound never moves"),
    ),
    "objective/step.py": (
        ("& kept[row]", "", "dropped responses move the mean"),
        ("dense.flip(1).cumsum(1).flip(1)[mask]", "dense.cumsum(1)[mask]", "the steps before a token"),
        ("dense.flip(1).cumsum(1).flip(1)[mask]", "dense[mask]", "a step rewards its last token alone"),
        ("scored.group[row[ends]]", "row[ends]", "steps normalised in their response"),
        ("value = function.weight * level.factor *", "value = level.factor *", "weights of functions forgotten"),
        ("whole = whole - function.weight", "whole = whole + 0 * function.weight", "steps count in the outcome again"),
        ("found[last] = found[last].nan_to_num() + whole", "found[last] = whole", "the outcome replaces the last step"),
    ),
    "objective/mirror.py": (
        ("return level.tau / 2 * (weight", "return level.tau * (weight", "no half"),
        ("(of_row * segment.total(d, row, rows) ** 2)", "(of_row * segment.total(d**2, row, rows))", "squares of tokens"),
        ("(of_row * segment.total(d, row, rows) ** 2)", "(of_row * segment.mean(d, row, rows) ** 2)", "a mean of logs"),
        ("return level.tau / 2 * (of_row", "return -level.tau / 2 * (of_row", "the distance rewarded"),
    ),
    "objective/pair.py": (
        ("-F.logsigmoid(level.beta * margin)", "-level.beta * F.logsigmoid(margin)", "beta outside of the sigmoid"),
        ("(spread > 0)", "(spread >= 0)", "pairs of equals"),
        ("argmax()]] = 1", "argmax()]] = -1", "the best response made worse"),
        ("side * (new - reference)", "side * new", "no reference in the margin"),
        ("margin = segment.total(", "margin = segment.mean(", "a mean over tokens in the margin"),
    ),
    "objective/pass_at_k.py": (
        ("comb(i, k - 1) / sets", "comb(i + 1, k - 1) / sets", "sets counted with the response twice"),
        ("comb(j - 1, k - 2) / sets", "comb(j, k - 2) / sets", "a larger reward counted for sets with one more"),
        ("sets = level.k, comb(n - 1, level.k - 1)", "sets = level.k, comb(n, level.k)", "a share of all sets"),
        ("comb(j - (j > i), k - 2)", "comb(j, k - 2)", "the response itself in the sets of the others"),
        ("return k * weights", "return weights", "k forgotten"),
        ("return weights - _of_all(n, k)", "return k * (weights - _of_all(n, k))", "the analytical advantages times k"),
        ("comb(j, k - 1) / comb(n, k)", "comb(j, k - 1) / comb(n - 1, k - 1)", "shares that don't add up to 1"),
        ("_sums((R - mean) ** 2, share)", "_sums(R**2, share)", "a second moment for sigma"),
        ("[:, None, :], weights)", "[:, None, :], weights.T)", "rows and columns swapped"),
        ("groups)[group] > 0", "groups)[group] >= 0", "rounding passes for an advantage"),
    ),
    "objective/value.py": (
        ("squared = torch.maximum(", "squared = torch.minimum(", "the smaller of the two losses"),
        ("near = old + (new - old).clamp", "near = returns + (new - returns).clamp", "values clipped around the target"),
        ("return squared / 2", "return squared", "no half"),
    ),
    "objective/segment.py": (
        ("(size(index, count) - ddof)", "size(index, count)", "ddof of the group std is 0"),
        ("index, count) / freedom", "index, count)", "a sum of squares for a variance"),
        ("/ size(index, count)", "/ len(x)", "a mean over the whole batch"),
        ('x, "amax", include_self=False', 'x, "amax"', "0 takes part in the maximum"),
    ),
    "rollout/retired.py": (
        ("(rate >= pass_rate)", "(rate > pass_rate)", "the bound itself is not enough"),
        (" & fresh)", ")", "carried groups are judged again"),
        ("Retired(found[-1][0] + 1, self.prompts)", "Retired(self.place + wanted, self.prompts)", "holes count as visits"),
        ("Retired(self.place, self.prompts | {", "Retired(self.place, {", "earlier prompts come back"),
        ("self.place, size)\n", "0, size)\n", "every step begins the walk anew"),
    ),
    "responses.py": (
        ("waiting[0][0] == count", "waiting[0][0] == count + 1", "answers one token too early"),
        ("places.append(len(tokens))", "places.append(len(places))", "an answer counts as written"),
        ("given = None if self.given is None else self.given.select(rows)", "given = self.given", "answers of other rows"),
    ),
    "log_probabilities.py": (
        ("before += [places[i] for i in own]", "before += [places[k] for k in range(len(own))]", "answers not counted"),
        ("own = written(response)", "own = range(len(response))", "answers are targets"),
        ("sum(len(written(x)) for", "sum(len(x) for", "the sets of tokens behind answers"),
    ),
    "rollout/torch.py": (
        ("logp, entropy = restricted(scaled, drawn == 0)", "entropy = restricted(scaled, drawn == 0)[1]",
         "the sampler's log-probability over the whole vocabulary"),
        ("wrote = not self.waiting", "wrote = True", "answers are drawn"),
        ("[len(self.ids)] * len(answer)", "[len(self.whole)] * len(answer)", "answers counted as written before"),
        ("or row.answers == turns.most", "or row.answers > turns.most", "one answer too many"),
        ("length - row.began == turns.longest", "length == turns.longest", "one limit for all turns"),
    ),
    "experience.py": (
        ("old, responses.logp, row", "responses.logp, old, row", "sampler and learner swapped"),
        ("scored)[rollouts.kept], scored.group[rollouts.kept]", "scored), scored.group", "filtered groups count as visits"),
        ("for p, v in zip(rollouts.problems, visits", "for p, v in zip(rollouts.problems, visits[::-1]", "prompts mixed up"),
        ("return A - paid * rollouts.kept[responses.row]", "return A - paid", "dropped responses pay as well"),
        ("return A - paid *", "return A + paid *", "the distance to the teacher rewarded"),
        ("old = responses.logp if before.logp is None else", "old = responses.logp if True else", "old is the sampler"),
    ),
    "batch.py": (
        ("sampler=rollouts.responses.logp[at] if", "sampler=old if", "the mask looks at the learner before the updates"),
        ("right.float() / right.sum()", "right.float() / len(right)", "NLL divided by all tokens"),
        ("torch.full_like(old, 1 / len(row))", "torch.full_like(old, 1 / len(rows))", "entropy divided by responses"),
        ("if all_ else len(rows))", "if True else len(rows))", "masked responses always count"),
        ("[at].float() * weight,", "[at].float(),", "token weights forgotten"),
        ("return torch.full_like(length_, 2 / batch.counted", "return torch.full_like(length_, 1 / batch.counted",
         "responses counted for pairs"),
        ("_, places = torch.unique(group, return_inverse=True)", "places = group", "groups that were dropped count"),
        (".exp() < recipe.schedule.update.eta", ".exp() > recipe.schedule.update.eta", "likely tokens first"),
        ("weight=tokens.weight * chosen,", "weight=tokens.weight * chosen / chosen.double().mean(),", "a denominator a pass"),
        ("nll_weight=tokens.nll_weight * chosen,", "nll_weight=tokens.nll_weight,", "NLL in both passes"),
        ("rollouts.kept & length.in_loss(", "length.in_loss(", "dropped responses in the loss"),
    ),
}  # fmt: skip

MUTANTS: tuple[Mutant, ...] = tuple(Mutant(file, *row) for file, rows in _TABLE.items() for row in rows)
