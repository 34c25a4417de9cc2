# bandit.sh: REINFORCE on a bandit with five arms, in POSIX sh and awk: sh bandit.sh RATE EVERY PROBLEMS
set -eu
awk -v rate="$1" -v every="$2" -v problems="$3" -v seed="$PARIBUS_SEED" -v steps="$PARIBUS_STEPS" -v out="$PARIBUS_OUT" '
function draw(   i, sum, u) {  # an action by softmax; p holds the probabilities
    sum = 0; for (i = 1; i <= 5; i++) sum += exp(w[i])
    for (i = 1; i <= 5; i++) p[i] = exp(w[i]) / sum
    u = rand(); for (i = 1; i < 5; i++) { u -= p[i]; if (u < 0) return i }
    return 5
}
function evaluate(step,   i, a, ids, ok, none, ones, said, file) {
    for (i = 1; i <= problems; i++) {
        a = draw()
        ids = ids (i > 1 ? "," : "") "\"p" i "\""; ok = ok (i > 1 ? "," : "") (a == 3); none = none (i > 1 ? "," : "") 0
        ones = ones (i > 1 ? "," : "") 1; said = said (i > 1 ? "," : "") "{\"" a "\": 1}"
    }
    file = out "/evals/heldout-" sprintf("%06d", step) ".json"
    printf "{\"step\": %d, \"set\": \"heldout\", \"samples\": 1, \"problems\": [%s], \"correct\": [%s], ", step, ids, ok > file
    printf "\"truncated\": [%s], \"tokens\": [%s], \"tokens_correct\": [%s], \"answers\": [%s]}\n", none, ones, ok, said > file
    close(file)
}
BEGIN {
    srand(seed + 1); metrics = out "/metrics.jsonl"
    for (step = 0; step <= steps; step++) {
        values = ""
        if (step > 0) {
            total = 0; for (i = 1; i <= 5; i++) g[i] = 0
            for (n = 1; n <= 16; n++) {
                a = draw(); reward = (a == 3); total += reward  # the third arm pays
                for (i = 1; i <= 5; i++) g[i] += reward * ((i == a) - p[i])
            }
            for (i = 1; i <= 5; i++) w[i] += rate * g[i]
            values = sprintf("\"reward/mean\": %.6f, \"reward/correct_frac\": %.6f", total / 16, total / 16)
        }
        if (step % every == 0 || step == steps) evaluate(step)
        printf "{\"step\": %d, \"values\": {%s}}\n", step, values >> metrics
        fflush(metrics)
    }
}'
echo '{"status": "succeeded"}' > "$PARIBUS_OUT/result.json"
