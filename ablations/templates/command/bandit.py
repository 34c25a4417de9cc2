# bandit.py: REINFORCE on a bandit with five arms, of which the third pays; a program that Paribus runs
import json, math, os, random, signal, sys

s, out, asked = json.load(open(os.environ["PARIBUS_SETTINGS"])), os.environ["PARIBUS_OUT"], []
signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
weights = json.load(open(s["checkpoint"] + "/weights.json")) if s["checkpoint"] else [0.0] * 5

def policy():
    powers = [math.exp(w) for w in weights]
    return [p / sum(powers) for p in powers]

for step in range(s["first_step"], s["schedule.steps"] + 1):
    chance, values = random.Random(f"{s['seed']} {step}"), {}  # an attempt that continues draws the same numbers
    if step > 0:
        p, actions = policy(), chance.choices(range(5), policy(), k=s["schedule.prompts_per_step"])
        mean = sum(a == 2 for a in actions) / len(actions)
        baseline = mean if s["baseline.kind"] == "batch_mean" else 0.0
        for action in actions:
            for a in range(5):
                weights[a] += s["optimizer.learning_rate"] * ((action == 2) - baseline) * ((a == action) - p[a])
        values = {"reward/mean": mean, "policy/entropy": -sum(q * math.log(q) for q in p)}
    if step % s["evaluate.every"] == 0 or step == s["schedule.steps"]:
        n, k = s["evaluate.problems"], s["evaluate.samples"]
        rows = [chance.choices(range(5), policy(), k=k) for _ in range(n)]
        right = [row.count(2) for row in rows]
        evaluation = {"step": step, "set": "heldout", "samples": k, "problems": [f"p{i}" for i in range(n)],
                      "correct": right, "truncated": [0] * n, "tokens": [k] * n, "tokens_correct": right,
                      "answers": [{str(a): row.count(a) for a in set(row)} for row in rows]}
        json.dump(evaluation, open(f"{out}/evals/heldout-{step:06d}.json", "w"))
    with open(f"{out}/metrics.jsonl", "a") as file:
        file.write(json.dumps({"step": step, "values": values}) + "\n")
    if asked or step % 10 == 0:  # a checkpoint: a folder that is complete when it gets its name
        os.makedirs(f"{out}/checkpoints/new")
        json.dump(weights, open(f"{out}/checkpoints/new/weights.json", "w"))
        os.rename(f"{out}/checkpoints/new", f"{out}/checkpoints/step-{step:06d}")
    if asked:
        sys.exit(75)
json.dump({"status": "succeeded"}, open(f"{out}/result.json", "w"))
