# existing.py: a training script with its own arguments, its own log, and answers to 40 test problems in answers.jsonl
import argparse, json, math, random

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--baseline", choices=["none", "batch_mean"])
parser.add_argument("--seed", type=int)
parser.add_argument("--iterations", type=int)
parser.add_argument("--eval-every", type=int)
parser.add_argument("--log")
args = parser.parse_args()
chance, weights = random.Random(args.seed), [0.0] * 5

def policy():
    powers = [math.exp(w) for w in weights]
    return [p / sum(powers) for p in powers]

def test(done):
    with open("answers.jsonl", "a") as file:
        for i in range(40):
            (action,) = chance.choices(range(5), policy())
            file.write(json.dumps({"done": done, "task": f"t{i}", "said": action, "right": action == 2}) + "\n")

test(0)
for iteration in range(args.iterations):
    p = policy()
    actions = chance.choices(range(5), p, k=16)
    rewards = [float(a == 2) for a in actions]
    mean = sum(rewards) / 16
    base = mean if args.baseline == "batch_mean" else 0.0
    for action, reward in zip(actions, rewards):
        for a in range(5):
            weights[a] += args.lr * (reward - base) * ((a == action) - p[a])
    if (iteration + 1) % args.eval_every == 0 or iteration + 1 == args.iterations:
        test(iteration + 1)
    with open(args.log, "a") as file:
        file.write(json.dumps({"iter": iteration, "accuracy_%": 100 * mean, "best_p": max(policy())}) + "\n")
print("done")
